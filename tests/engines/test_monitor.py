"""The monitor: the first non-finite value of every trial, for rows in one process or in several."""

from typing import NamedTuple

import torch
from torch import Tensor

from depositum.engines import Divergence, Monitor
from tests.support.thread_communicator import ThreadCommunicator, run_threads

LABELS, N, D = (5, 9), 4, 3


class TrackingState(NamedTuple):
    t: Tensor
    x: Tensor
    y: Tensor
    nu: Tensor


def state_at(t: int, clients: int, bad: dict[tuple[int, int, str], int]) -> TrackingState:
    """Ones, with an infinity in (trial, client, variable) from an iteration on; `[trials · clients, D]` each."""
    rows = {name: torch.ones(len(LABELS), clients, D) for name in ("x", "y", "nu")}
    for (trial, client, name), since in bad.items():
        if t >= since:
            rows[name][trial, client, -1] = torch.inf
    return TrackingState(torch.tensor(t), *(z.flatten(0, 1) for z in rows.values()))


def divergences(communicator: ThreadCommunicator, bad: dict[tuple[int, int, str], int]) -> list[list[Divergence]]:
    """What one of two processes with two clients each reports after every iteration; `bad` has global clients."""
    clients = range(2 * communicator.rank, 2 * communicator.rank + 2)
    own = {(k, client - clients[0], name): t for (k, client, name), t in bad.items() if client in clients}
    monitor = Monitor(LABELS, clients, N, 0, state_at(0, 2, own))
    found = []
    for t in range(1, 7):
        monitor.observe(state_at(t, 2, own))
        assert monitor.read_errors(t) == [], "other processes hold the other rows"
        found.append(monitor.diverged(communicator))
    return found


def test_processes_agree_on_the_first_non_finite_value() -> None:
    """The smallest iteration, then the first variable of the state, then the smallest client, in any process."""
    bad = {
        (0, 0, "nu"): 4,
        (0, 3, "y"): 4,
        (0, 2, "y"): 4,
        (1, 1, "x"): 5,
        (1, 3, "nu"): 3,
    }
    first, second = run_threads(2, lambda communicator: divergences(communicator, bad))
    assert first == second
    late = Divergence(5, 4, 2, "y")
    early = Divergence(9, 3, 3, "nu")
    assert first == [[], [], [early], [late, early], [late, early], [late, early]]


def test_a_value_that_becomes_finite_again_is_still_reported() -> None:
    """Monitored at every iteration, not only at those at which the monitor is read."""
    monitor = Monitor(LABELS, range(N), N, 4, state_at(0, N, {}))
    monitor.observe(state_at(1, N, {(1, 2, "y"): 1}))
    monitor.observe(state_at(2, N, {}))
    assert monitor.diverged() == [Divergence(9, 1, 2, "y")]


def test_processes_without_divergence_report_none() -> None:
    assert run_threads(2, lambda communicator: divergences(communicator, {})) == [[[]] * 6] * 2
