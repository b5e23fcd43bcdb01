"""One process among many in a phase in which some or all of its clients rest."""

from collections.abc import Callable

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State
from depositum.engines.cohorts import CohortMix, common_variables, rows_of, selected, write_buffers, write_rows
from depositum.engines.distributed.async_tensor import awaited
from depositum.engines.distributed.awaiting_oracle import AwaitingOracle
from depositum.engines.distributed.link_iteration import LinkIteration
from depositum.engines.distributed.links import LinkMix
from depositum.engines.iteration import state_tensors
from depositum.engines.mixing import IdentityMix
from depositum.networks import Participation
from depositum.problem import Batch, Oracle


class LinkCohortMix(CohortMix):
    """What `mix` is on the rows of the clients held here that take part.

    Parameters
    ----------
    members
        How many take part; 0 if `rows` are those of a client that rests.
    """

    def __init__(self, links: LinkMix, rows: Tensor, members: int) -> None:
        super().__init__(links, rows, links.trials * len(links.held))
        self._links, self._members = links, members

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over the cohort; clients that rest contribute nothing."""
        z = awaited(z)
        links = self._links
        blocks = z.view(links.trials, -1, *z.shape[1:])
        if links.communicator.size > 1:
            links.bytes_sent += self._members / len(links.held) * z.shape[1] * z.element_size()
        own = blocks.sum(1) if self._members else torch.zeros_like(blocks[:, 0])
        mean = links.communicator.sum(own) / round(self.share * links.placement.n)
        return mean[:, None].expand_as(blocks).reshape(z.shape)


class IdleOracle(AwaitingOracle):
    """The oracle of a client that rests: its gradients are 0 and take no time."""

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        return torch.zeros_like(awaited(x))

    def full_grad(self, x: Tensor) -> Tensor:
        return torch.zeros_like(awaited(x))


class LinkCohortIteration(LinkIteration):
    """The step of the clients held here that take part. It is not compiled: how many there are changes.

    If none does, the step is taken for one of them without data, so that this process has its part in sums over all
    processes and learns what a server sends to everyone; nothing else remains of it.

    Parameters
    ----------
    merged
        The algorithm as it acts on the rows of so many clients.
    """

    def __init__(
        self,
        oracle: Oracle,
        links: LinkMix,
        period: int,
        participation: Participation,
        merged: Callable[[int], Algorithm],
    ) -> None:
        super().__init__(merged(len(links.held)), oracle, links, period)
        self.participation, self._merged = participation, merged

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        links, clients = self.links, torch.tensor(list(self.links.held))
        phase, talks = state.t.cpu() // self.period, self.algorithm.communicates(kind)
        there = self.participation.present(phase, clients, links.placement.n).nonzero()[:, 0]
        members = len(there)
        rows = rows_of(there if members else there.new_zeros(1), len(clients), links.trials).to(state.t.device)
        self.oracle.begin(state.t + 1)
        oracle, exchange = self.oracle.of_rows(rows), LinkCohortMix(links, rows, members)
        part = self._merged(max(1, members)).step(
            selected(state, rows),
            AwaitingOracle(oracle) if members else IdleOracle(oracle),
            exchange if talks else IdentityMix(exchange),
            kind,
        )
        links.wait()
        new: State = state._replace(**{name: value.clone() for name, value in state_tensors(state).items()})
        common = common_variables(self.algorithm, talks)
        write_rows(new, awaited(part), rows, common, links.trials, members=members > 0)
        write_buffers(self.oracle, oracle, rows)
        return new

    def sends(self, kind: str) -> bool:
        return True  # it cannot be captured

    def can_be_compiled(self, kind: str) -> bool:
        return False
