"""FedDR and FedADMM: randomized Douglas-Rachford splitting and ADMM with a server, here with all clients in each round.

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

The minimisations are T0 gradient steps of α, started from the client's own last x_i. One vector up and one down per
round, one gradient per iteration. FedADMM(c) is FedDR(a = 1, η = 1/c), with q_i = (x_i − y_i)/η.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from depositum.algorithms.base import ALGORITHMS, About, Mix, Oracle
from depositum.algorithms.server import ServerMethod, start_clock
from depositum.algorithms.stepping import check_choice, check_positive
from depositum.errors import ConfigError, is_number


class FedDRState(NamedTuple):
    """The variables of FedDR, each `[rows, d]` but t."""

    t: Tensor  # iteration
    x: Tensor  # x̄^k, the server's model
    local: Tensor  # x_i
    anchor: Tensor  # y_i^{k+1}, of the round that is going on


@ALGORITHMS.register("feddr")
@dataclass(frozen=True)
class FedDR(ServerMethod):
    """Federated Douglas-Rachford splitting.

    Parameters
    ----------
    alpha
        Stepsize α > 0 of the T0 inner gradient steps, or a schedule.
    eta
        η > 0, the step of both proxes, that of f_i and that of βh; a weakly convex h needs ηβρ < 1.
    relaxation
        a ∈ (0, 2).
    start
        y_i^0: `"model"` is x_0, the paper's; `"zero"` is 0, which the released code has.
    """

    name: ClassVar[str] = "feddr"
    about: ClassVar[About] = About(
        title="FedDR",
        citation="Tran-Dinh, Pham, Phan, Nguyen: FedDR - Randomized Douglas-Rachford Splitting Algorithms for "
        "Nonconvex Federated Composite Optimization, NeurIPS 2021",
        mixing="1",
        notes="With few inner steps a large eta makes it slow. The released code starts from y_i = 0 "
        '(start = "zero") and uses eta of 100 to 1000, too large for a weakly convex h.',
    )
    prox_key: ClassVar[str] = "eta"
    prox_formula: ClassVar[str] = "η"

    eta: float = 1.0
    relaxation: float = 1.0
    start: Literal["model", "zero"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("eta", self.eta)
        check_choice("start", self.start, ("model", "zero"))
        if not (is_number(self.relaxation) and 0 < self.relaxation < 2):
            raise ConfigError("algorithm.relaxation", f"{self.relaxation!r} given; it must lie in (0, 2)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedDRState:
        t, _ = start_clock(x0)
        # (DR.1) leaves y_i^1 = y_i^0, since x̄^0 = x_i^0
        return FedDRState(t=t, x=x0, local=x0, anchor=x0 if self.start == "model" else torch.zeros_like(x0))

    def step(self, s: FedDRState, oracle: Oracle, mix: Mix, kind: str) -> FedDRState:
        g = oracle.grad(s.local, oracle.sample())
        local = s.local - self.alpha_at(s.t) * (g + (s.local - s.anchor) / self.eta)  # (DR.2)
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local)
        x = oracle.prox(mix.average(2 * local - s.anchor), self.eta)  # (DR.3), (DR.4)
        anchor = s.anchor + self.relaxation * (x - local)  # (DR.1) of the next round
        return FedDRState(t=s.t + 1, x=x, local=local, anchor=anchor)

    def largest_prox_step(self, period: int) -> float:
        return self.eta


class FedADMMState(NamedTuple):
    """The variables of FedADMM, each `[rows, d]` but t."""

    t: Tensor  # iteration
    x: Tensor  # x̄^k, the server's model
    local: Tensor  # x_i
    q: Tensor  # q_i, the duals


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
    """

    name: ClassVar[str] = "fedadmm"
    about: ClassVar[About] = About(
        title="FedADMM",
        citation="Wang, Marella, Anderson: FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation, "
        "CDC 2022",
        mixing="1",
        notes="FedADMM(c) is FedDR(relaxation = 1, eta = 1/c). Two other methods, without h, have the same name.",
    )
    prox_key: ClassVar[str] = "c"
    prox_formula: ClassVar[str] = "1/c"

    c: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("c", self.c)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedADMMState:
        t, _ = start_clock(x0)
        return FedADMMState(t=t, x=x0, local=x0, q=torch.zeros_like(x0))

    def step(self, s: FedADMMState, oracle: Oracle, mix: Mix, kind: str) -> FedADMMState:
        g = oracle.grad(s.local, oracle.sample())
        local = s.local - self.alpha_at(s.t) * (g + s.q + self.c * (s.local - s.x))  # (AD.1)
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local)
        q = s.q + self.c * (local - s.x)  # (AD.2)
        x = oracle.prox(mix.average(local + q / self.c), 1 / self.c)  # (AD.3), (AD.4)
        return FedADMMState(t=s.t + 1, x=x, local=local, q=q)

    def largest_prox_step(self, period: int) -> float:
        return 1 / self.c
