"""FedDR and FedADMM: randomized Douglas-Rachford splitting and ADMM with a server.

FedDR. Q. Tran-Dinh, N. H. Pham, D. T. Phan, L. M. Nguyen: "FedDR - Randomized Douglas-Rachford Splitting Algorithms for
Nonconvex Federated Composite Optimization", NeurIPS 2021. P_τ is the prox of τh; from x̄^0 = x_i^0 = y_i^0 = x_0,

    y_i^{k+1} = y_i^k + a ( x̄^k − x_i^k )                                          (DR.1)
    x_i^{k+1} ≈ argmin_x f_i(x) + ‖x − y_i^{k+1}‖²/(2η)                            (DR.2)
    x̂_i^{k+1} = 2 x_i^{k+1} − y_i^{k+1}                                            (DR.3)
    x̄^{k+1} = P_{ηβ}( mean_i x̂_i^{k+1} )                                           (DR.4)

FedADMM. H. Wang, S. Marella, J. Anderson: "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation",
CDC 2022. From x̄^0 = x_i^0 = x_0, q_i^0 = 0,

    x_i^{k+1} ≈ argmin_x f_i(x) + ⟨q_i^k, x − x̄^k⟩ + (c/2)‖x − x̄^k‖²               (AD.1)
    q_i^{k+1} = q_i^k + c ( x_i^{k+1} − x̄^k )                                      (AD.2)
    x̂_i^{k+1} = x_i^{k+1} + q_i^{k+1}/c                                            (AD.3)
    x̄^{k+1} = P_{β/c}( mean_i x̂_i^{k+1} )                                          (AD.4)

The minimisations are T0 gradient steps with stepsize α, from the client's previous x_i. One vector up and one down per
round, one gradient per iteration. FedADMM(c) is FedDR(a = 1, η = 1/c), with q_i = (x_i − y_i)/η.

Clients outside the cohort of a round leave out (DR.1) to (DR.3), or (AD.1) to (AD.3). The means at the server are over
all clients, with the last x̂_i of those: the clients of the cohort send how theirs have changed.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerMethod, iteration_zero, zeros_like


class FedDRState(NamedTuple):
    """The variables of FedDR, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # x̄^k, the server's model
    local: Tensor  # x_i
    base: Tensor  # y_i^k − a x_i^k, to which (DR.1) adds a x̄^k
    sent: Tensor | None = None  # x̂_i as last sent, if there are cohorts
    mean: Tensor | None = None  # mean_i x̂_i at the server, if there are cohorts


@ALGORITHMS.register("feddr")
@dataclass(frozen=True)
class FedDR(ServerMethod):
    """Federated Douglas-Rachford splitting.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the T0 inner gradient steps, or a schedule.
    eta
        Step η > 0 of both proxes, of f_i and of βh; a weakly convex h needs ηβρ < 1.
    relaxation
        Relaxation a ∈ (0, 2).
    start
        y_i^0: `"model"` is x_0, as in the paper; `"zero"` is 0, as in the released code.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "feddr"
    about = About(
        title="FedDR",
        citation="Tran-Dinh, Pham, Phan, Nguyen: FedDR - Randomized Douglas-Rachford Splitting Algorithms for "
        "Nonconvex Federated Composite Optimization, NeurIPS 2021",
        mixing="1",
        notes="With few inner steps, a large eta makes it slow. The released code starts from y_i = 0 "
        '(start = "zero") and uses eta of 100 to 1000, too large for a weakly convex h.',
    )
    prox_key = "eta"
    prox_formula = "η"
    served = ("x", "mean")

    eta: float = 1.0
    relaxation: float = 1.0
    start: Literal["model", "zero"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("eta", self.eta)
        check_interval("relaxation", self.relaxation, "(0, 2)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedDRState:
        y = x0 if self.start == "model" else zeros_like(x0)
        sent = None if mix.share == 1 else 2 * x0 - y  # (DR.3)
        return FedDRState(t=iteration_zero(x0), x=x0, local=x0, base=y - self.relaxation * x0, sent=sent, mean=sent)

    def step(self, s: FedDRState, oracle: Oracle, mix: Mix, kind: str) -> FedDRState:
        y = s.base + self.relaxation * s.x  # (DR.1)
        local = s.local - self.alpha_at(s.t) * (self.gradient(s.local, oracle) + (s.local - y) / self.eta)  # (DR.2)
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local)
        sent = 2 * local - y  # (DR.3)
        mean = server_mean(self, sent, s.sent, s.mean, oracle, mix)
        x, base = oracle.prox(mean, self.eta), y - self.relaxation * local  # (DR.4)
        if s.sent is None:
            return FedDRState(t=s.t + 1, x=x, local=local, base=base)
        return FedDRState(t=s.t + 1, x=x, local=local, base=base, sent=sent, mean=mean)

    def largest_prox_step(self, period: int) -> float:
        return self.eta


class FedADMMState(NamedTuple):
    """The variables of FedADMM, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # x̄^k, the server's model
    local: Tensor  # x_i
    q: Tensor  # q_i, the dual variables
    sent: Tensor | None = None  # x̂_i as last sent, if there are cohorts
    mean: Tensor | None = None  # mean_i x̂_i at the server, if there are cohorts


def server_mean(
    method: ServerMethod, sent: Tensor, before: Tensor | None, mean: Tensor | None, oracle: Oracle, mix: Mix
) -> Tensor:
    """Return mean_i x̂_i over all clients, from what those of the round send and, if there are cohorts, from before."""
    if before is None or mean is None:
        return method.average(sent, oracle, mix)
    return mean + method.change_of_mean(sent - before, oracle, mix)


@ALGORITHMS.register("fedadmm")
@dataclass(frozen=True)
class FedADMM(ServerMethod):
    """Federated ADMM.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the T0 inner gradient steps, or a schedule.
    c
        Penalty c > 0; a weakly convex h needs βρ < c.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "fedadmm"
    about = About(
        title="FedADMM",
        citation="Wang, Marella, Anderson: FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation, "
        "CDC 2022",
        mixing="1",
        notes="FedADMM(c) is FedDR(relaxation = 1, eta = 1/c). Two other methods, without h, also have this name.",
    )
    prox_key = "c"
    prox_formula = "1/c"
    served = ("x", "mean")

    c: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("c", self.c)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedADMMState:
        sent = None if mix.share == 1 else x0  # (AD.3)
        return FedADMMState(t=iteration_zero(x0), x=x0, local=x0, q=zeros_like(x0), sent=sent, mean=sent)

    def step(self, s: FedADMMState, oracle: Oracle, mix: Mix, kind: str) -> FedADMMState:
        g = self.gradient(s.local, oracle)
        local = s.local - self.alpha_at(s.t) * (g + s.q + self.c * (s.local - s.x))  # (AD.1)
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local)
        q = s.q + self.c * (local - s.x)  # (AD.2)
        sent = local + q / self.c  # (AD.3)
        mean = server_mean(self, sent, s.sent, s.mean, oracle, mix)
        x = oracle.prox(mean, 1 / self.c)  # (AD.4)
        if s.sent is None:
            return FedADMMState(t=s.t + 1, x=x, local=local, q=q)
        return FedADMMState(t=s.t + 1, x=x, local=local, q=q, sent=sent, mean=mean)

    def largest_prox_step(self, period: int) -> float:
        return 1 / self.c
