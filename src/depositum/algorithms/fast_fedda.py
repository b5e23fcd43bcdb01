"""Fast-FedDA: accelerated federated dual averaging for strongly convex f and convex h.

Y. Bao, M. Crawshaw, S. Luo, M. Liu: "Fast Composite Optimization and Statistical Recovery in Federated Learning", ICML
2022, as in its released code. P_τ is the prox of τh. With an estimate m of the strong convexity, a constant G > 0, sums
G_i of gradients (initially 0) and X_i of points (initially x_0), w_i = x_0, and T the number of iterations including
this one, a local step is

    G_i ← G_i + g_i(w_i)
    A = ( G_i − (m/2) X_i − G x_0 )/T,  B = m/2 + G/T
    w_i = P_{β/B}( −A/B );  X_i ← X_i + w_i                                        (FF.1)

and the exchange, after the last local step of the round, is

    G_i ← mean_j G_j,  X_i ← mean_j X_j,  w from A and B of these sums at the same T
    w_i ← w,  X_i ← X_i + w                                                        (FF.2)

Two vectors up and two down per round (a client can compute w itself), one gradient per iteration.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import TunableFloat, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerRounds, iteration_zero, zeros_like


class FastFedDAState(NamedTuple):
    """The variables of Fast-FedDA, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # w, the server's model
    local: Tensor  # w_i
    gradients: Tensor  # G_i, sums of gradients
    points: Tensor  # X_i, sums of points
    x0: Tensor  # the initial model, to which all steps are attracted


@ALGORITHMS.register("fast-fedda")
@dataclass(frozen=True)
class FastFedDA(ServerRounds):
    """Fast federated dual averaging, for strongly convex f and convex h.

    Parameters
    ----------
    m
        Estimate m > 0 of the strong convexity of f; the prox steps grow towards 2/m.
    G
        Constant G > 0: the first step is 1/(G + m/2), and with larger values the models stay near x_0 for longer.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "fast-fedda"
    about = About(
        title="Fast-FedDA",
        citation="Bao, Crawshaw, Luo, Liu: Fast Composite Optimization and Statistical Recovery in Federated Learning, "
        "ICML 2022",
        mixing="2",
        notes="For strongly convex f and convex h; slow, O(1/T), and biased. As in the released code, T0 + 1 points "
        "are added to the sum of points in a round of T0 iterations, which shifts the limit, more so for small T0.",
    )
    stepsize_key, stepsize_inverse = "G", True
    handles = "convex"
    needs_all = "adds up gradients and points of all iterations, which clients that were absent would not have"

    m: float = 0.1
    G: TunableFloat = 25.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("m", self.m)
        if not self.automatic:
            check_positive("G", self.G)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FastFedDAState:
        return FastFedDAState(t=iteration_zero(x0), x=x0, local=x0, gradients=zeros_like(x0), points=x0, x0=x0)

    def step(self, s: FastFedDAState, oracle: Oracle, mix: Mix, kind: str) -> FastFedDAState:
        gradients = s.gradients + self.gradient(s.local, oracle)
        local = self._model(s, gradients, s.points, oracle)  # (FF.1)
        points = s.points + local
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local, gradients=gradients, points=points)
        gradients, points = self.average(gradients, oracle, mix), self.average(points, oracle, mix)
        x = self._model(s, gradients, points, oracle)  # (FF.2)
        return FastFedDAState(t=s.t + 1, x=x, local=x, gradients=gradients, points=points + x, x0=s.x0)

    def vectors(self) -> int:
        return 2

    def largest_prox_step(self, period: int) -> float:
        return 2 / self.m

    def _model(self, s: FastFedDAState, gradients: Tensor, points: Tensor, oracle: Oracle) -> Tensor:
        """Return P_{β/B}(−A/B) at T = t + 1."""
        T = (s.t + 1).double()
        A = (gradients - self.m / 2 * points - self.G * s.x0) / T
        B = self.m / 2 + self.G / T
        return oracle.prox(-A / B, 1 / B)
