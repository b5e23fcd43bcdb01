"""The rows of the clients that take part in a phase, taken out of those of all clients, advanced and put back.

An algorithm acts on whatever rows it is given. In a phase in which clients rest, it is given those of the others alone,
with an oracle and a `mix` for them: time and messages are those of the cohort, and whatever the method, all variables
of a client that rests stand still. Only what a server sends to everyone (`Algorithm.served`) changes in all rows.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State
from depositum.channels import Channel, Memory
from depositum.engines.iteration import MatrixIteration, state_tensors
from depositum.engines.mixing import ExchangeMix, IdentityMix, MatrixMix
from depositum.networks import Participation
from depositum.problem import Oracle


class RowMix(ExchangeMix, Protocol):
    """A mix of all rows that are held here."""

    def __call__(self, z: Tensor) -> Tensor: ...


class CohortMix:
    """What `mix` is on the rows of a cohort: W^t, in which the links of those that rest are absent.

    Parameters
    ----------
    exchange
        W^t on the rows `[S·k, d]` of all clients held here.
    rows
        The cohort's among them, `[S·m]`.
    """

    def __init__(self, exchange: RowMix, rows: Tensor, held: int) -> None:
        self.lam, self.lam2, self.lam_min, self.share = exchange.lam, exchange.lam2, exchange.lam_min, exchange.share
        self._exchange, self._rows, self._held = exchange, rows, held

    @property
    def degree(self) -> Tensor:
        return self._exchange.degree[self._rows]

    def __call__(self, z: Tensor) -> Tensor:
        return self._exchange(self._among_all(z))[self._rows]

    pull = push = __call__  # directed networks have no cohorts

    def push_weights(self, phi: Tensor) -> Tensor:
        return phi

    def neighbours(self, z: Tensor) -> Tensor:
        """The unweighted sum over the neighbours of each row that do not rest."""
        return self._exchange.neighbours(self._among_all(z))[self._rows]

    def average(self, z: Tensor) -> Tensor:
        """The exact mean over the cohort, in every row."""
        raise NotImplementedError

    def transmit(self, z: Tensor, channel: Channel, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """As of all rows; the memory of those that rest stays as it is."""
        everyone = {name: self._among_all(own) for name, own in memory.items()}
        mixed, q, after = self._exchange.transmit(self._among_all(z), channel, everyone)
        return mixed[self._rows], q[self._rows], {name: own[self._rows] for name, own in after.items()}

    def _among_all(self, z: Tensor) -> Tensor:
        """Rows of the cohort at their positions among all, and zeros, which no present link carries."""
        return z.new_zeros(self._held, *z.shape[1:]).index_copy(0, self._rows, z)


class MatrixCohortMix(CohortMix):
    """That of the simulator."""

    def __init__(self, exchange: MatrixMix, rows: Tensor) -> None:
        super().__init__(exchange, rows, exchange.trials * exchange.n)
        self._matrix = exchange

    def average(self, z: Tensor) -> Tensor:
        blocks = z.view(self._matrix.trials, -1, *z.shape[1:])
        self._matrix.to_all += self.share * z.shape[1] * z.element_size()
        return blocks.mean(1, keepdim=True).expand_as(blocks).reshape(z.shape)


class CohortIteration(MatrixIteration):
    """The step of the clients that take part, in place.

    Parameters
    ----------
    of_cohort
        The algorithm as it acts on the rows of a cohort: numbers that differ between trials are columns of its rows.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        oracle: Oracle,
        exchange: MatrixMix,
        period: int,
        participation: Participation,
        of_cohort: Algorithm,
    ) -> None:
        super().__init__(algorithm, oracle, exchange, period)
        self.participation, self.of_cohort = participation, of_cohort

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        copy: State = state._replace(**{name: value.clone() for name, value in state_tensors(state).items()})
        self._write(copy, kind)
        return copy

    def advance(self, kind: str) -> None:
        """One iteration, without the monitor; nothing is copied but rows of the cohort."""
        channel = self.channel_state
        old = channel.named()
        self._write(self.state, kind)
        for name, value in channel.named().items():
            old[name].copy_(value)
        channel.replace(old)

    def observe(self, state: State) -> None:
        """Show a state to the monitor: with a server the cohort's rows only, so that time is that of the cohort.

        The others have not changed, or are what the server has sent to all.
        """
        if self.monitor is not None and self.algorithm.server:
            rows = self._rows((state.t - 1) // self.period)
            self.monitor.observe(selected(state, rows), rows)
        else:
            super().observe(state)

    def _write(self, state: State, kind: str) -> None:
        """Advance a state in place."""
        # Iteration t evaluates its gradients at x^{t+1}, with the batches of t + 1; the start has those of 0.
        phase = state.t // self.period
        self.oracle.begin(state.t + 1)
        self.exchange.begin(phase)
        rows, talks = self._rows(phase), self.algorithm.communicates(kind)
        exchange, oracle = MatrixCohortMix(self.exchange, rows), self.oracle.of_rows(rows)
        part = self.of_cohort.step(selected(state, rows), oracle, exchange if talks else IdentityMix(exchange), kind)
        write_rows(state, part, rows, common_variables(self.algorithm, talks), self.exchange.trials)
        write_buffers(self.oracle, oracle, rows)

    def _rows(self, phase: Tensor) -> Tensor:
        """The rows that take part in a phase."""
        n = self.exchange.n
        return rows_of(self.participation.members(phase, n), n, self.exchange.trials)


def rows_of(clients: Tensor, held: int, trials: int) -> Tensor:
    """The rows `[S·m]` of all trials for the positions `[m]` of clients among those held here."""
    offsets = held * torch.arange(trials, device=clients.device)
    return (clients + offsets[:, None]).flatten()


def selected(state: State, rows: Tensor) -> State:
    """The state of some rows; what is common to all rows stays as it is."""
    total = len(state.x)
    chosen = {k: v[rows] for k, v in state._asdict().items() if _has_rows(v, total)}
    part: State = state._replace(**chosen)
    return part


def common_variables(method: Algorithm, talks: bool) -> tuple[str, ...]:
    """The variables that an iteration, with an exchange or without, changes in all rows."""
    return (*method.clocks, *method.served) if talks else method.clocks


def write_rows(
    state: State, part: State, rows: Tensor, common: Sequence[str], trials: int, *, members: bool = True
) -> None:
    """Write what some rows have become into a state, in place.

    Parameters
    ----------
    part
        The new state of these rows.
    common
        Variables that all rows take over from the first of these rows, trial by trial.
    members
        Whether these rows take part: those of a process all of whose clients rest only tell it what is common.
    """
    total = len(state.x)
    for name, old in state._asdict().items():
        new = getattr(part, name)
        if not isinstance(old, Tensor):
            continue
        if not _has_rows(old, total):
            old.copy_(new)
        elif name in common:
            first = new.view(trials, -1, *new.shape[1:])[:, :1]
            blocks = old.view(trials, -1, *old.shape[1:])
            blocks.copy_(first.expand_as(blocks))
        elif members:
            old.index_copy_(0, rows, new)


def write_buffers(oracle: Oracle, part: Oracle, rows: Tensor) -> None:
    """Write the buffers of some rows back, in place, and count what the rows evaluated, on average over all."""
    for name, buffer in part.buffers.items():
        oracle.buffers[name].index_copy_(0, rows, buffer)
    oracle.evaluations = part.evaluations * part.rows / oracle.rows


def _has_rows(value: object, total: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == total
