"""GUT and FedNMUT: tracking of model updates, with one vector.

S. A. Aketi, A. Hashemi, K. Roy: "Global Update Tracking: A Decentralized Learning Algorithm for Heterogeneous Data",
NeurIPS 2023; V. P. Chellapandi, A. Upadhyay, A. Hashemi, S. H. Żak: "FedNMUT – Federated Noisy Model Update Tracking
Convergence Analysis", 2024.

    s^t     = W x^t,   g^t = gradients at s^t
    x^{t+1} = s^t − α ( g^t + μ ( W y^{t−1} − g^{t−1} ) )         (GU.1)
    y^t     = ( x^t − x^{t+1} ) / α,   y^{−1} = g^{−1} = 0        (GU.2)

W y^{t−1} = (s^{t−1} − s^t)/α is computed from what was received, so one vector is sent. mean(y^t) = mean(g^t). Biased
if clients differ, (1 − μ) times as much as with μ = 0. For T0 > 1 there are two forms, which agree at T0 = 1:

    rounds:   from s = W x take T0 local steps to u; with g = (s − u)/(T0 α), (GU.1) and (GU.2) once per round with T0 α
    replaced: (GU.1) and (GU.2) in every iteration with W^t for W; sends x and y, two vectors, and is fragile: each
              mixing enters y and is repeated in the local steps (it diverges for μ ≥ 0.5 on a ring at T0 = 5)

FedNMUT is GUT in rounds over noisy channels: independent N(0, σ²) noise is added to what a client sends. Noise on a
model affects that transmission only; noise on increments x^t − x^{t−1} accumulates in the copies into which they are
summed. All users of a transmission, including its sender, use the noisy value.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval, check_nonnegative
from depositum.algorithms.interface import ALGORITHMS, About, Algorithm, Mix, Oracle, RoundBased, State, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero, zero_elapsed, zeros_like


class GUTState(NamedTuple):
    """The variables of the form in rounds, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # models x^r
    mixed: Tensor  # s^r = W x^r, where the local steps start
    local: Tensor  # the local iterates of the round
    y: Tensor  # W y^{r−1}, the updates of the previous round as received
    g: Tensor  # mean gradients of the previous round
    elapsed: Tensor  # sum of the round's stepsizes so far; T0 α at its end
    error: Tensor | None = None  # FedNMUT on increments: noise accumulated in the copies


class GUTReplacedState(NamedTuple):
    """The variables of the form with W^t for W, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # the previous updates y^{t−1}
    g: Tensor  # the previous gradients, at the mixed models


@dataclass(frozen=True)
class _UpdateTracking(SmoothMethod, RoundBased):
    """(GU.1) and (GU.2) in rounds; subclasses define the channel."""

    mu: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("mu", self.mu, "[0, 1]")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> State:
        zero = zeros_like(x0)
        # All clients start from x0, so W x0 = x0 needs no exchange.
        return GUTState(t=iteration_zero(x0), x=x0, mixed=x0, local=x0, y=zero, g=zero, elapsed=zero_elapsed(x0))

    def step(self, s: GUTState, oracle: Oracle, mix: Mix, kind: str) -> State:
        alpha = self._alpha(s)
        local = s.local - alpha * oracle.grad(s.local, oracle.sample())
        elapsed = s.elapsed + alpha
        if kind == "local":
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        g = (s.mixed - local) / elapsed
        x = local - elapsed * self.mu * (s.y - s.g)  # (GU.1)
        mixed, error = self._receive(x, s.error, oracle, mix)
        y = (s.mixed - mixed) / elapsed  # W of (GU.2)
        return GUTState(t=s.t + 1, x=x, mixed=mixed, local=mixed, y=y, g=g, elapsed=zeros_like(elapsed), error=error)

    def vectors(self) -> int:
        return 1

    def _receive(self, x: Tensor, error: Tensor | None, oracle: Oracle, mix: Mix) -> tuple[Tensor, Tensor | None]:
        """Return W x as the clients receive it, and the state of the channel."""
        return mix(x), None


@ALGORITHMS.register("gut")
@dataclass(frozen=True)
class GUT(_UpdateTracking):
    """Global update tracking.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    mu
        Scaling μ ∈ [0, 1] of the tracked updates; 0 is D-PSGD with gradients at the mixed models.
    form
        The form for T0 > 1: `"rounds"` of local steps with one tracked update per round, or (GU.1) with W `"replaced"`
        by W^t, which is fragile and sends two vectors.
    """

    name = "gut"
    about = About(
        title="GUT",
        citation="Aketi, Hashemi, Roy: Global Update Tracking: A Decentralized Learning Algorithm for Heterogeneous "
        "Data, NeurIPS 2023",
        mixing="1",
        notes="Biased if clients differ, at a constant stepsize. form = 'replaced' diverges easily with local "
        "steps. Gradients are evaluated at the mixed models; x is the model before mixing, at the start of the round.",
    )

    form: Literal["rounds", "replaced"] = "rounds"

    def kind(self, t: int, period: int) -> str:
        return super().kind(t, period) if self.form == "rounds" else Algorithm.kind(self, t, period)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> State:
        if self.form == "rounds":
            return super().init(x0, oracle, mix)
        zero = zeros_like(x0)
        return GUTReplacedState(t=iteration_zero(x0), x=x0, y=zero, g=zero)

    def step(self, s: GUTState | GUTReplacedState, oracle: Oracle, mix: Mix, kind: str) -> State:
        if isinstance(s, GUTState):
            return super().step(s, oracle, mix, kind)
        alpha, mixed = self._alpha(s), mix(s.x)
        g = oracle.grad(mixed, oracle.sample())
        x = mixed - alpha * (g + self.mu * (mix(s.y) - s.g))  # (GU.1)
        return GUTReplacedState(t=s.t + 1, x=x, y=(s.x - x) / alpha, g=g)  # (GU.2)

    def vectors(self) -> int:
        return 1 if self.form == "rounds" else 2


@ALGORITHMS.register("fednmut")
@dataclass(frozen=True)
class FedNMUT(_UpdateTracking):
    """GUT in rounds over noisy channels.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    mu
        Scaling μ ∈ [0, 1] of the tracked updates.
    noise
        Standard deviation σ ≥ 0 of the noise on each number sent; 0 is GUT.
    noise_on
        What is sent: the `"model"`, or its `"increment"`, whose noise accumulates in the copies.
    """

    name = "fednmut"
    about = About(
        title="FedNMUT",
        citation="Chellapandi, Upadhyay, Hashemi, Żak: FedNMUT – Federated Noisy Model Update Tracking Convergence "
        "Analysis, 2024",
        mixing="1",
        notes="GUT with noise on transmissions. The noise also moves the mean of the models.",
    )

    noise: float = 0.01
    noise_on: Literal["model", "increment"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nonnegative("noise", self.noise)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> State:
        start = super().init(x0, oracle, mix)
        if self.noise_on == "increment":
            start = start._replace(error=zeros_like(x0))
        return start

    def _receive(self, x: Tensor, error: Tensor | None, oracle: Oracle, mix: Mix) -> tuple[Tensor, Tensor | None]:
        # Drawn after the batch of the step, so that the batches are the same as GUT's.
        fresh = self.noise * oracle.normal(x)
        if error is None:
            return mix(x + fresh), None
        error = error + fresh
        return mix(x + error), error
