"""ProxGT-SA, ProxGT-SR-O and ProxGT-SR-E: proximal gradient tracking with large batches or recursive estimates.

R. Xin, S. Das, U. A. Khan, S. Kar: "A Stochastic Proximal Gradient Framework for Decentralized Non-Convex Composite
Optimization: Topology-Independent Sample Complexity and Communication Efficiency", arXiv 2110.01594. With K mixing
rounds, plain or Chebyshev,

    y^{t+1} = W^K ( y^t + v^t − v^{t−1} )                                              (PG.1)
    x^{t+1} = W^K P_{αβ}( x^t − α y^{t+1} )                                            (PG.2)
    SA:   v^t = g(x^t) with a large batch                                              (PG.3)
    SR-O: v^t = g(x^t) with a very large batch B0 if t mod q = 0,
          v^t = v^{t−1} + g(x^t;ξ) − g(x^{t−1};ξ) otherwise                            (PG.4)
    SR-E: as SR-O, with full local gradients if t mod q = 0                            (PG.5)

from x_i^0 = x_0, y^0 = v^{−1} = 0. With a period, W^K is the identity in local steps. Here a step begins with the
tracker before mixing, ỹ^t = y^t + v^t − v^{t−1}, and ends with the gradient at the new models, so that in every state
v^t belongs to x^t and J ỹ^t = J v^t; ỹ^0 = v^0.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_count
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.mixing_rounds import mix_rounds
from depositum.algorithms.stepsize_methods import StepsizeMethod, iteration_zero

_CITATION = (
    "Xin, Das, Khan, Kar: A Stochastic Proximal Gradient Framework for Decentralized Non-Convex Composite "
    "Optimization: Topology-Independent Sample Complexity and Communication Efficiency, arXiv 2110.01594"
)


class ProxGTState(NamedTuple):
    """The variables of ProxGT, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # models
    y: Tensor  # ỹ, trackers of the average of v, before mixing
    nu: Tensor  # v, gradient estimates at x


@dataclass(frozen=True)
class _ProxGT(StepsizeMethod):
    """(PG.1) and (PG.2); subclasses define the gradient estimate v."""

    rounds: int = 1
    chebyshev: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rounds", self.rounds)

    @abstractmethod
    def _fresh_estimate(self, x: Tensor, oracle: Oracle) -> Tensor:
        """Return v^0, or v^t in an iteration that is not recursive."""

    def _estimate(self, s: ProxGTState, x: Tensor, oracle: Oracle, kind: str) -> Tensor:
        """Return v^{t+1} at the new models x."""
        return self._fresh_estimate(x, oracle)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ProxGTState:
        v = self._fresh_estimate(x0, oracle)
        return ProxGTState(t=iteration_zero(x0), x=x0, y=v, nu=v)

    def step(self, s: ProxGTState, oracle: Oracle, mix: Mix, kind: str) -> ProxGTState:
        alpha = self._alpha(s)
        y = mix_rounds(mix, s.y, self.rounds, self.chebyshev)  # (PG.1)
        x = mix_rounds(mix, oracle.prox(s.x - alpha * y, alpha), self.rounds, self.chebyshev)  # (PG.2)
        v = self._estimate(s, x, oracle, kind)
        return ProxGTState(t=s.t + 1, x=x, y=y + v - s.nu, nu=v)

    def vectors(self) -> int:
        return 2 * self.rounds


@ALGORITHMS.register("proxgt-sa")
@dataclass(frozen=True)
class ProxGTSA(_ProxGT):
    """ProxGT-SA; its large batch is the batch size of the run.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, the number of mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    """

    name = "proxgt-sa"
    about = About(
        title="ProxGT-SA",
        citation=_CITATION,
        mean_squared_smoothness=False,
        bounded_heterogeneity=False,
        batch="O(1/(n ε))",
        communication="Õ(1/ε)",
        gradients="O(1/(n ε²))",
        mega_batch=True,
        linear_speedup=True,
        mixing="2K",
    )

    def _fresh_estimate(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(x, oracle.sample())  # (PG.3)


@dataclass(frozen=True)
class _RecursiveProxGT(_ProxGT):
    """SR: v is computed afresh every q iterations, and recursively in between."""

    q: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("q", self.q)

    def kind(self, t: int, period: int) -> str:
        """Iteration t computes v^{t+1}, afresh in a refresh, which may be an exchange or local."""
        mixing = super().kind(t, period)
        if (t + 1) % self.q:
            return mixing
        return "refresh" if mixing == "exchange" else "refresh-local"

    def communicates(self, kind: str) -> bool:
        return kind in ("exchange", "refresh")

    def _estimate(self, s: ProxGTState, x: Tensor, oracle: Oracle, kind: str) -> Tensor:
        if kind.startswith("refresh"):
            return self._fresh_estimate(x, oracle)
        batch = oracle.sample()
        return s.nu + oracle.grad(x, batch) - oracle.grad(s.x, batch)  # (PG.4)


@ALGORITHMS.register("proxgt-sr-o")
@dataclass(frozen=True)
class ProxGTSRO(_RecursiveProxGT):
    """ProxGT-SR-O, for the online setting: it refreshes v with a very large batch.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, the number of mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    q
        Iterations from one refresh to the next.
    refresh_batch
        B0, the batch size of a refresh; recursive steps use the batch size of the run.
    """

    name = "proxgt-sr-o"
    about = About(
        title="ProxGT-SR-O",
        citation=_CITATION,
        mean_squared_smoothness=True,
        bounded_heterogeneity=False,
        batch="O(1/(n ε))",
        communication="Õ(1/ε)",
        gradients="O(1/(n ε^{3/2}))",
        mega_batch=True,
        linear_speedup=True,
        mixing="2K",
        notes="The batch size is that of a refresh. Some public implementations freeze v between refreshes, which "
        "leaves a permanent bias in the tracker.",
    )

    refresh_batch: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("refresh_batch", self.refresh_batch)

    def _fresh_estimate(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.grad(x, oracle.sample(self.refresh_batch))  # (PG.4)


@ALGORITHMS.register("proxgt-sr-e")
@dataclass(frozen=True)
class ProxGTSRE(_RecursiveProxGT):
    """ProxGT-SR-E, for empirical risks: it refreshes v with full local gradients.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    rounds
        K, the number of mixing rounds in each exchange of a variable.
    chebyshev
        Whether the K rounds are accelerated.
    q
        Iterations from one refresh to the next; in theory about the square root of a client's number of samples.
    """

    name = "proxgt-sr-e"
    about = About(title="ProxGT-SR-E", citation=_CITATION, mixing="2K")

    def _fresh_estimate(self, x: Tensor, oracle: Oracle) -> Tensor:
        return oracle.full_grad(x)  # (PG.5)
