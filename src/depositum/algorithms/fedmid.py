"""FedMiD and FedDualAvg: federated mirror descent and federated dual averaging for composite problems.

H. Yuan, M. Zaheer, S. Reddi: "Federated Composite Optimization", ICML 2021. P_τ is the prox of τh, s the server step.

FedMiD: from w_i^{r,0} = w^r,

    w_i^{r,k+1} = P_{αβ}( w_i^{r,k} − α g_i(w_i^{r,k}) ),  k = 0 … K−1             (FM.1)
    Δ = mean_i (w_i^{r,K} − w^r)                                                   (FM.2)
    w^{r+1} = P_{sHβ}( w^r + s Δ ),  H = Kα                                        (FM.3)

Without the prox in (FM.1) it is the paper's "only server proximal" variant, OSP.

FedDualAvg: the server stores a dual z^r (z^0 = x_0) and the elapsed step H^r (H^0 = 0); from y_i = z^r, H = H^r,

    w_i = P_{Hβ}(y_i);  y_i ← y_i − α g_i(w_i);  H ← H + α,  K times               (FA.1)
    z^{r+1} = z^r + s · mean_i (y_i − z^r);  H^{r+1} = H^r + s Kα                  (FA.2)
    w^{r+1} = P_{H^{r+1}β}( z^{r+1} )                                              (FA.3)

One vector up and one down per round, one gradient per iteration. With h = 0 both are FedAvg.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerMethod, iteration_zero, zero_elapsed, zeros_like
from depositum.errors import ConfigError

CITATION = "Yuan, Zaheer, Reddi: Federated Composite Optimization, ICML 2021"


class FedMiDState(NamedTuple):
    """The variables of FedMiD, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    local: Tensor  # w_i
    elapsed: Tensor  # sum of the client stepsizes of this round; H at its end


@ALGORITHMS.register("fedmid")
@dataclass(frozen=True)
class FedMiD(ServerMethod):
    """Federated mirror descent.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    server_step
        Server step s > 0.
    client_prox
        Whether clients apply the prox in (FM.1); False is the OSP variant.
    server_prox
        Whether the server applies the prox in (FM.3).
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "fedmid"
    about = About(
        title="FedMiD",
        citation=CITATION,
        mixing="1",
        notes="Biased: with both proxes, h acts twice in a round, so that even T0 = 1 does not converge to a solution; "
        "without the server's, the bias is much smaller. The released code does not regularize biases and "
        "convolutions.",
    )
    prox_formula = "max(α, server_step·T0·α)"
    served = ("x", "local")

    server_step: float = 1.0
    client_prox: bool = True
    server_prox: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("server_step", self.server_step)
        if not (self.client_prox or self.server_prox):
            raise ConfigError(
                "server_prox",
                "False given together with client_prox = False; the method without a prox is 'fedavg'",
            )

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedMiDState:
        elapsed = zero_elapsed(x0)
        return FedMiDState(t=iteration_zero(x0), x=x0, local=x0, elapsed=elapsed)

    def step(self, s: FedMiDState, oracle: Oracle, mix: Mix, kind: str) -> FedMiDState:
        alpha = self.alpha_at(s.t)
        local = s.local - alpha * self.gradient(s.local, oracle)  # (FM.1)
        if self.client_prox:
            local = oracle.prox(local, alpha)  # (FM.1)
        elapsed = s.elapsed + alpha
        if not self.communicates(kind):
            return FedMiDState(t=s.t + 1, x=s.x, local=local, elapsed=elapsed)
        x = s.x + self.server_step * self.average(local - s.x, oracle, mix)  # (FM.2)
        if self.server_prox:
            x = oracle.prox(x, self.server_step * elapsed)  # (FM.3)
        return FedMiDState(t=s.t + 1, x=x, local=x, elapsed=zeros_like(elapsed))

    def largest_prox_step(self, period: int) -> float:
        alpha = self.largest_alpha
        client = alpha if self.client_prox else 0.0
        return max(client, self.server_step * period * alpha) if self.server_prox else client


class FedDualAvgState(NamedTuple):
    """The variables of FedDualAvg, each `[rows, d]` except t; H, H_rest and elapsed are `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    z: Tensor  # z^r, the server's dual, equal in all rows
    local: Tensor  # y_i, the clients' duals
    H: Tensor  # H^r, the step elapsed at the server
    H_rest: Tensor  # rounding error of H so far, subtracted in the next sum
    elapsed: Tensor  # sum of the client stepsizes of this round


@ALGORITHMS.register("feddualavg")
@dataclass(frozen=True)
class FedDualAvg(ServerMethod):
    """Federated dual averaging, for convex h: its prox step grows without bound.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    server_step
        Server step s > 0.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "feddualavg"
    about = About(
        title="FedDualAvg",
        citation=CITATION,
        mixing="1",
        notes="For convex h only. Biased by client drift in proportion to the step. Its dual variables grow with the "
        "number of rounds, so that very long runs lose accuracy in float32.",
    )
    handles = "convex"
    served = ("x", "z", "local", "H", "H_rest")

    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedDualAvgState:
        elapsed = zero_elapsed(x0)
        return FedDualAvgState(t=iteration_zero(x0), x=x0, z=x0, local=x0, H=elapsed, H_rest=elapsed, elapsed=elapsed)

    def step(self, s: FedDualAvgState, oracle: Oracle, mix: Mix, kind: str) -> FedDualAvgState:
        alpha = self.alpha_at(s.t)
        w = oracle.prox(s.local, s.H + s.elapsed)  # (FA.1)
        local = s.local - alpha * self.gradient(w, oracle)  # (FA.1)
        elapsed = s.elapsed + alpha
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        z = s.z + self.server_step * self.average(local - s.z, oracle, mix)  # (FA.2)
        # Kahan summation: over thousands of rounds, equal rounding errors would add up to a wrong prox step.
        increment = self.server_step * elapsed - s.H_rest
        H = s.H + increment  # (FA.2)
        x = oracle.prox(z, H)  # (FA.3)
        H_rest = (H - s.H) - increment
        return FedDualAvgState(t=s.t + 1, x=x, z=z, local=z, H=H, H_rest=H_rest, elapsed=zeros_like(elapsed))

    def largest_prox_step(self, period: int) -> float:
        return inf
