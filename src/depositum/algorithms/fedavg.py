"""FedAvg, and FedAvg-M with momentum: model averaging after local steps. For smooth problems only.

FedAvg. H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017. From w_i = w^r, K local steps and then, with server step s,

    w_i ← w_i − α g_i(w_i)                                  (AV.1)
    w^{r+1} = w^r + s · mean_i (w_i − w^r)                  (AV.2)

FedAvg-M. Z. Cheng, X. Huang, P. Wu, K. Yuan: "Momentum Benefits Non-IID Federated Learning Simply and Provably", ICLR
2024. With m^0 = 0,

    w_i ← w_i − α ( (1−γ) g_i(w_i) + γ m^r )                (AM.1)
    m^{r+1} = mean_i (w^r − w_i) / (Kα)                     (AM.2)
    w^{r+1} = w^r − s Kα m^{r+1}                            (AM.3)

One vector up and one down per round, one gradient per iteration.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_interval, check_positive
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, Tensor
from depositum.algorithms.stepsize_methods import ServerMethod, iteration_zero, zero_elapsed, zeros_like


class FedAvgState(NamedTuple):
    """The variables of FedAvg, each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    local: Tensor  # w_i


@ALGORITHMS.register("fedavg")
@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Federated averaging.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    server_step
        Server step s > 0; 1 is plain averaging.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "fedavg"
    about = About(
        title="FedAvg",
        citation="McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks "
        "from Decentralized Data, AISTATS 2017",
        mixing="1",
        notes="Biased by client drift if the clients' data differ and T0 > 1.",
    )
    handles = "smooth"
    served = ("x", "local")

    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedAvgState:
        return FedAvgState(t=iteration_zero(x0), x=x0, local=x0)

    def step(self, s: FedAvgState, oracle: Oracle, mix: Mix, kind: str) -> FedAvgState:
        local = s.local - self.alpha_at(s.t) * self.gradient(s.local, oracle)  # (AV.1)
        if not self.communicates(kind):
            return FedAvgState(t=s.t + 1, x=s.x, local=local)
        x = s.x + self.server_step * self.average(local - s.x, oracle, mix)  # (AV.2)
        return FedAvgState(t=s.t + 1, x=x, local=x)


class FedAvgMState(NamedTuple):
    """The variables of FedAvg-M, each `[rows, d]` except t and elapsed `[rows, 1]`."""

    t: Tensor  # iteration
    x: Tensor  # w^r, the server's model
    local: Tensor  # w_i
    m: Tensor  # m^r, the server's momentum, equal in all rows
    elapsed: Tensor  # sum of the client stepsizes of this round


@ALGORITHMS.register("fedavg-m")
@dataclass(frozen=True)
class FedAvgM(ServerMethod):
    """FedAvg with local steps that are averaged with the mean direction of the previous round.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    gamma
        Momentum γ ∈ [0, 1), 1 − β in the paper; 0 is FedAvg.
    server_step
        Server step s > 0. The server's stepsize in the paper is s·K·α.
    server_weights
        Where clients are weighted by their samples, if the problem does so: `"uniform"` in their gradients, or
        `"samples"` in the averages at the server.
    """

    name = "fedavg-m"
    about = About(
        title="FedAvg-M",
        citation="Cheng, Huang, Wu, Yuan: Momentum Benefits Non-IID Federated Learning Simply and Provably, ICLR 2024",
        bounded_heterogeneity=False,
        mixing="1",
        notes="At a constant stepsize it is still biased if the clients' data differ and T0 > 1, but less than FedAvg.",
    )
    handles = "smooth"
    served = ("x", "local", "m")

    gamma: float = 0.5
    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("gamma", self.gamma, "[0, 1)")
        check_positive("server_step", self.server_step)

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> FedAvgMState:
        elapsed = zero_elapsed(x0)
        return FedAvgMState(t=iteration_zero(x0), x=x0, local=x0, m=zeros_like(x0), elapsed=elapsed)

    def step(self, s: FedAvgMState, oracle: Oracle, mix: Mix, kind: str) -> FedAvgMState:
        alpha = self.alpha_at(s.t)
        g = self.gradient(s.local, oracle)
        local = s.local - alpha * ((1 - self.gamma) * g + self.gamma * s.m)  # (AM.1)
        elapsed = s.elapsed + alpha
        if not self.communicates(kind):
            return s._replace(t=s.t + 1, local=local, elapsed=elapsed)
        m = self.average(s.x - local, oracle, mix) / elapsed  # (AM.2)
        x = s.x - self.server_step * elapsed * m  # (AM.3)
        return FedAvgMState(t=s.t + 1, x=x, local=x, m=m, elapsed=zeros_like(elapsed))
