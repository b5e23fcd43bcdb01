"""DFedAvgM: decentralized federated averaging with momentum.

T. Sun, D. Li, B. Wang: "Decentralized Federated Averaging", IEEE Transactions on Pattern Analysis and Machine
Intelligence, 2022. A round is K = T0 local steps with the heavy ball, and one mixing; from u_i^0 = u_i^{−1} = x_i^r,

    u_i^{k+1} = u_i^k − α g_i(u_i^k) + θ ( u_i^k − u_i^{k−1} ),  k = 0 … K−1        (DM.1)
    x^{r+1} = W u^K                                                                (DM.2)

The momentum starts anew in every round. One vector per communication, one gradient per iteration. With a constant α and
clients that differ, the limit is not a solution; its analysis bounds gradients. docs/methods.md says with which code it
was compared.
"""

from dataclasses import dataclass
from typing import NamedTuple

from depositum.algorithms.hyperparameters import check_interval
from depositum.algorithms.interface import ALGORITHMS, About, Mix, Oracle, RoundBased, Tensor
from depositum.algorithms.stepsize_methods import SmoothMethod, iteration_zero


class DFedAvgMState(NamedTuple):
    """The variables of (DM.1), each `[rows, d]` except t."""

    t: Tensor  # iteration
    x: Tensor  # x^r, the models at the start of the round
    local: Tensor  # u^k
    before: Tensor  # u^{k−1}


@ALGORITHMS.register("dfedavgm")
@dataclass(frozen=True)
class DFedAvgM(SmoothMethod, RoundBased):
    """Decentralized federated averaging with momentum.

    Parameters
    ----------
    alpha
        Stepsize α > 0, or a schedule.
    theta
        Momentum θ ∈ [0, 1); 0 is decentralized FedAvg.
    """

    name = "dfedavgm"
    about = About(
        title="DFedAvgM",
        citation="Sun, Li, Wang: Decentralized Federated Averaging, IEEE Transactions on Pattern Analysis and Machine "
        "Intelligence 2022",
        mixing="1",
        notes="Biased if clients differ, at a constant stepsize. The momentum starts anew in every round, so that it "
        "has no effect with T0 = 1.",
    )

    theta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("theta", self.theta, "[0, 1)")

    def init(self, x0: Tensor, oracle: Oracle, mix: Mix) -> DFedAvgMState:
        return DFedAvgMState(t=iteration_zero(x0), x=x0, local=x0, before=x0)

    def step(self, s: DFedAvgMState, oracle: Oracle, mix: Mix, kind: str) -> DFedAvgMState:
        g = oracle.grad(s.local, oracle.sample())
        local = s.local - self._alpha(s) * g + self.theta * (s.local - s.before)  # (DM.1)
        if not self.communicates(kind):
            return DFedAvgMState(t=s.t + 1, x=s.x, local=local, before=s.local)
        x = mix(local)  # (DM.2)
        return DFedAvgMState(t=s.t + 1, x=x, local=x, before=x)

    def vectors(self) -> int:
        return 1
