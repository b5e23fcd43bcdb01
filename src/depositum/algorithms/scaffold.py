"""SCAFFOLD, and SCAFFOLD-M with momentum: control variates that correct client drift. For smooth problems only.

SCAFFOLD. S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020. With control variates c = c_i = 0 at the start, x_i = w^r and K steps,

    x_i ← x_i − α ( g_i(x_i) − c_i + c )                    (SC.1)
    option I:  c_i⁺ = g_i(w^r)                              (SC.2)
    option II: c_i⁺ = c_i − c + (w^r − x_i)/(Kα)            (SC.2)
    w^{r+1} = w^r + s · mean_i (x_i − w^r)                  (SC.3)
    c⁺ = c + (|S|/n) mean_i (c_i⁺ − c_i)                    (SC.3)

SCAFFOLD-M. Z. Cheng, X. Huang, P. Wu, K. Yuan: "Momentum Benefits Non-IID Federated Learning Simply and Provably", ICLR
2024. With m^0 = 0,

    x_i ← x_i − α ( (1−γ) ( g_i(x_i) − c_i + c ) + γ m^r )  (SM.1)
    c_i⁺ = the mean of client i's gradients of the round    (SM.2)
    m^{r+1} = mean_i (w^r − x_i) / (Kα)                     (SM.3)
    w^{r+1} = w^r − s Kα m^{r+1},  c⁺ as in (SC.3)          (SM.4)

Two vectors up and two down per round; one gradient per iteration, and one more per round with option I. mean_i is over
the cohort S of the round, and c is the mean of the c_i of all n clients at all times.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from depositum.algorithms.hyperparameters import check_interval, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerMethod, iteration_zero, zero_elapsed, zeros_like


class ScaffoldState(NamedTuple):
    """The variables of SCAFFOLD, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    local: Tensor  # x_i
    c: Tensor  # the server's control variate, equal in all rows
    ci: Tensor  # c_i, the clients' control variates
    elapsed: Tensor  # sum of the client stepsizes of this round


@ALGORITHMS.register("scaffold")
@dataclass(frozen=True)
class Scaffold(ServerMethod):
    """Stochastic controlled averaging.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    option
        How c_i is updated: `"I"` with a gradient at the server's model, `"II"` with the displacement of the round,
        at no extra cost.
    server_step
        Server step s > 0.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "scaffold"
    about = About(
        title="SCAFFOLD",
        citation="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for "
        "Federated Learning, ICML 2020",
        bounded_heterogeneity=False,
        mixing="2",
    )
    handles = "smooth"
    served = ("x", "local", "c")

    option: Literal["I", "II"] = "II"
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ScaffoldState:
        zero = zeros_like(x0)
        return ScaffoldState(t=iteration_zero(x0), x=x0, local=x0, c=zero, ci=zero, elapsed=zero_elapsed(x0))

    def step(self, s: ScaffoldState, oracle: Oracle, mix: Mix, kind: str) -> ScaffoldState:
        alpha = self.alpha_at(s.t)
        local = s.local - alpha * (self.gradient(s.local, oracle) - s.ci + s.c)  # (SC.1)
        elapsed = s.elapsed + alpha
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        fresh = self.option == "I"
        ci = self.gradient(s.x, oracle) if fresh else s.ci - s.c + (s.x - local) / elapsed  # (SC.2)
        x = s.x + self.server_step * self.average(local - s.x, oracle, mix)  # (SC.3)
        c = s.c + self.change_of_mean(ci - s.ci, oracle, mix)  # (SC.3)
        return ScaffoldState(t=s.t + 1, x=x, local=x, c=c, ci=ci, elapsed=zeros_like(elapsed))

    def vectors(self) -> int:
        return 2


class ScaffoldMState(NamedTuple):
    """The variables of SCAFFOLD-M, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    local: Tensor  # x_i
    c: Tensor  # the server's control variate, equal in all rows
    ci: Tensor  # c_i, the clients' control variates
    m: Tensor  # m^r, the server's momentum, equal in all rows
    gradients: Tensor  # sum of α·g_i over this round
    elapsed: Tensor  # sum of the client stepsizes of this round


@ALGORITHMS.register("scaffold-m")
@dataclass(frozen=True)
class ScaffoldM(ServerMethod):
    """SCAFFOLD with local steps that are averaged with the mean direction of the previous round.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    gamma
        Momentum γ ∈ [0, 1), 1 − β in the paper.
    server_step
        Server step s > 0. The server's stepsize in the paper is s·K·α.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "scaffold-m"
    about = About(
        title="SCAFFOLD-M",
        citation="Cheng, Huang, Wu, Yuan: Momentum Benefits Non-IID Federated Learning Simply and Provably, ICLR 2024",
        bounded_heterogeneity=False,
        mixing="2",
    )
    handles = "smooth"
    served = ("x", "local", "c", "m")

    gamma: float = 0.5
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("gamma", self.gamma, "[0, 1)")
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> ScaffoldMState:
        t, zero, elapsed = iteration_zero(x0), zeros_like(x0), zero_elapsed(x0)
        return ScaffoldMState(t=t, x=x0, local=x0, c=zero, ci=zero, m=zero, gradients=zero, elapsed=elapsed)

    def step(self, s: ScaffoldMState, oracle: Oracle, mix: Mix, kind: str) -> ScaffoldMState:
        alpha, gamma = self.alpha_at(s.t), self.gamma
        g = self.gradient(s.local, oracle)
        local = s.local - alpha * ((1 - gamma) * (g - s.ci + s.c) + gamma * s.m)  # (SM.1)
        gradients, elapsed = s.gradients + alpha * g, s.elapsed + alpha
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local, gradients=gradients, elapsed=elapsed)
        ci = gradients / elapsed  # (SM.2)
        m = self.average(s.x - local, oracle, mix) / elapsed  # (SM.3)
        x = s.x - self.server_step * elapsed * m  # (SM.4)
        c = s.c + self.change_of_mean(ci - s.ci, oracle, mix)  # (SC.3)
        gradients, elapsed = zeros_like(gradients), zeros_like(elapsed)
        return ScaffoldMState(t=s.t + 1, x=x, local=x, c=c, ci=ci, m=m, gradients=gradients, elapsed=elapsed)

    def vectors(self) -> int:
        return 2
