"""The first non-finite value of a run whose rows lie in several processes: kept per rank, agreed on when asked."""

import torch

from depositum.algorithms import State
from depositum.engines.monitor import Divergence, row_variables
from depositum.engines.processes.group import Group

_NEVER = (1 << 63) - 1


class FirstNonFinite:
    """Watches the rows held here at every iteration, without asking the device to wait.

    Parameters
    ----------
    clients
        The clients held here, whose rows each seed has in the state.
    n
        All clients.
    """

    def __init__(self, seeds: tuple[int, ...], clients: range, n: int, state: State) -> None:
        self.seeds, self.n = seeds, n
        self.names = list(row_variables(state))
        # What was bad first, as one number: the smallest (iteration, variable, client).
        own = torch.tensor(clients, device=state.x.device).repeat(len(seeds))
        self._place = torch.arange(len(self.names), device=state.x.device) * n + own[:, None]
        self._first = torch.full_like(self._place, _NEVER)

    def observe(self, state: State) -> None:
        """Note the state after an iteration."""
        # A sum is finite only if all its terms are, and reads each row once.
        sums = torch.stack([v.sum(1) for v in row_variables(state).values()], dim=1)
        here = state.t * (len(self.names) * self.n) + self._place
        self._first = torch.minimum(self._first, torch.where(torch.isfinite(sums), _NEVER, here))

    def agreed(self, group: Group) -> list[Divergence]:
        """The first non-finite value of each seed that has one on any rank: the same answer on all of them."""
        first = group.minimum(self._first.view(len(self.seeds), -1).amin(1)).tolist()
        found = []
        for seed, place in zip(self.seeds, first, strict=True):
            if place != _NEVER:
                rest, client = divmod(place, self.n)
                iteration, variable = divmod(rest, len(self.names))
                found.append(Divergence(seed, iteration, client, self.names[variable]))
        return found
