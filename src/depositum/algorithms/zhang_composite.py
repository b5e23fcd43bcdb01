"""Composite federated learning of Zhang, Hu and Johansson: drift correction with decoupled proxes.

J. Zhang, J. Hu, M. Johansson: "Composite Federated Learning with Heterogeneous Data", ICASSP 2024, arXiv 2309.01795.
P_τ is the prox of τh, s the server step and α̃ = sKα. From the server's model x̄^r before its prox, and corrections c_i,

    p = P_{α̃β}( x̄^r );  ẑ_i = z_i = p
    ẑ_i ← ẑ_i − α ( g_i(z_i) + c_i^r );  z_i = P_{(k+1)αβ}( ẑ_i ),  k = 0 … K−1    (ZH.1)
    x̄^{r+1} = p + s ( mean_i ẑ_i − p )                                             (ZH.2)
    c_i^{r+1} = ( p − x̄^{r+1} )/(sKα) − mean_k g_i(z_i)                            (ZH.3)

Clients send ẑ_i, before the prox: one vector up and one down per round, one gradient per iteration. The model is p,
initially x_0 (the prox of some x̄^1), so that all methods start from the same model. The corrections average to 0 at
all times.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerMethod, iteration_zero, zero_elapsed, zeros_like


class ZhangState(NamedTuple):
    """The variables of the method, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # p, the server's model
    local: Tensor  # z_i
    zhat: Tensor  # ẑ_i, before the prox
    c: Tensor  # c_i, the corrections
    gradients: Tensor  # sum of α·g_i over this round
    elapsed: Tensor  # sum of the client stepsizes of this round


@ALGORITHMS.register("zhang-composite")
@dataclass(frozen=True)
class ZhangComposite(ServerMethod):
    """Composite federated learning with heterogeneous data.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    server_step
        Server step s > 0.
    start
        c_i^1: `"zero"`, or `"gradient"`, which is mean_j g_j(x_0) − g_i(x_0) and needs one synchronisation.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "zhang-composite"
    about = About(
        title="Zhang et al.",
        citation="Zhang, Hu, Johansson: Composite Federated Learning with Heterogeneous Data, ICASSP 2024",
        bounded_heterogeneity=False,
        mixing="1",
    )
    prox_formula = "max(1, server_step)·T0·α"
    needs_all = "has corrections that add up to 0 over all clients, which fails if those of some stand still"

    server_step: float = 1.0
    start: Literal["zero", "gradient"] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ZhangState:
        zero = c = zeros_like(x0)
        if self.start == "gradient":
            g = self.gradient(x0, oracle)
            c = self.average(g, oracle, mix) - g
        return ZhangState(t=iteration_zero(x0), x=x0, local=x0, zhat=x0, c=c, gradients=zero, elapsed=zero_elapsed(x0))

    def step(self, s: ZhangState, oracle: Oracle, mix: Mix, kind: str) -> ZhangState:
        alpha = self.alpha_at(s.t)
        g = self.gradient(s.local, oracle)
        zhat = s.zhat - alpha * (g + s.c)  # (ZH.1)
        gradients, elapsed = s.gradients + alpha * g, s.elapsed + alpha
        if not self.communicates(kind):
            local = oracle.prox(zhat, elapsed)  # (ZH.1)
            return s._replace(t=s.t + 1, local=local, zhat=zhat, gradients=gradients, elapsed=elapsed)
        drift = self.average(zhat - s.x, oracle, mix)
        x = oracle.prox(s.x + self.server_step * drift, self.server_step * elapsed)  # (ZH.2)
        c = -(drift + gradients) / elapsed  # (ZH.3), where p − x̄^{r+1} is −s·drift
        gradients, elapsed = zeros_like(gradients), zeros_like(elapsed)
        return ZhangState(t=s.t + 1, x=x, local=x, zhat=x, c=c, gradients=gradients, elapsed=elapsed)

    def largest_prox_step(self, period: int) -> float:
        return max(1.0, self.server_step) * period * self.largest_alpha
