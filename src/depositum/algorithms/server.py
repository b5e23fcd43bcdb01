"""What methods with a server share: rounds of K = T0 local steps, a client stepsize, and one model in all rows.

A round starts from the server's model w^r, which is the state's `x`: equal in all rows and unchanged until the round's
last step ends with the exchange. Every client has the same weight 1/n (a weighting by samples lives in the oracle).
Where an equation has K·α, the code has `elapsed`, the sum of the client steps α_t since the round began, which is K·α
at the exchange and stays right for a stepsize that changes with t.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from depositum.algorithms.base import RoundBased
from depositum.algorithms.schedules import as_schedule
from depositum.algorithms.stepping import Stepping, iteration_zero


@dataclass(frozen=True)
class ServerMethod(Stepping, RoundBased):
    """Base of the methods whose clients take gradient steps of their own between visits to the server.

    Parameters
    ----------
    alpha
        Client stepsize α > 0, or a schedule.
    """

    server: ClassVar[bool] = True

    def vectors(self) -> int:
        return 1


def largest_alpha(method: ServerMethod) -> float:
    """The largest client stepsize that a method ever takes."""
    return as_schedule(method.alpha).largest


def start_clock(x0: Tensor) -> tuple[Tensor, Tensor]:
    """Iteration t = 0, and an elapsed step of 0 for each row, `[rows, 1]`: rows may have stepsizes of their own."""
    return iteration_zero(x0), x0.new_zeros(len(x0), 1)
