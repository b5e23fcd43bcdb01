"""Processes that die, hang or do not belong together: named, in one line, and nobody is left running."""

import signal
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.support.rank_engines import alone, refused, slow_once, until_lost
from tests.support.rank_processes import RankProcesses, free_port, launch

pytestmark = pytest.mark.slow

TIMEOUT = 3.0


@pytest.mark.parametrize(
    ("name", "number", "victim"),
    [
        ("depositum", signal.SIGKILL, 2),
        ("depositum", signal.SIGSTOP, 2),
        ("depositum", signal.SIGUSR1, 3),  # sleeps, with its heart beating
        ("depositum", signal.SIGKILL, 0),  # which keeps the store here
        ("depositum", signal.SIGSTOP, 0),
        ("fedavg", signal.SIGKILL, 1),  # has collectives only
        ("fedavg", signal.SIGSTOP, 3),
    ],
)
def test_a_lost_peer_is_named_by_all(name: str, number: signal.Signals, victim: int, tmp_path: Path) -> None:
    """Within the time-out and 2 s, every other rank names it, its clients and its host, and not one of the others.

    On a ring of 4, the one opposite waits for ranks that only wait themselves: naming them would break it.
    """
    with RankProcesses(until_lost, 4, 8, name, TIMEOUT, str(tmp_path)) as started:
        started.wait_for(tmp_path)
        began = time.monotonic()
        started.signal(victim, number)
        for rank in set(range(4)) - {victim}:
            message, ranks, at = started.receive(rank, TIMEOUT + 10)
            assert ranks == (victim,), message
            assert f"rank {victim} (clients {2 * victim}–{2 * victim + 1}, host " in message
            assert "\n" not in message
            assert at - began <= TIMEOUT + 2


def test_a_peer_that_was_only_late_is_forgiven(tmp_path: Path) -> None:
    """It answers when it was about to be named; the one that is lost later is named, and not the late one again."""
    with RankProcesses(slow_once, 4, 4, TIMEOUT, str(tmp_path)) as started:
        started.wait_for(tmp_path)
        started.signal(2, signal.SIGSTOP)
        for rank in (0, 1, 3):
            message, ranks = started.receive(rank, TIMEOUT + 10)
            assert ranks == (2,), message


def test_a_restart_has_nothing_of_the_attempt_before(tmp_path: Path) -> None:
    """One store for all attempts, as torchrun keeps it: old addresses, beats or verdicts would mislead the next."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with RankProcesses(until_lost, 3, 3, "depositum", TIMEOUT, str(folder), store=(store.port, attempt)) as started:
            started.wait_for(folder)
            started.signal(attempt, number)
            for rank in set(range(3)) - {attempt}:
                message, ranks, _ = started.receive(rank, TIMEOUT + 10)
                assert ranks == (attempt,), message


SAME = {"problem": {"clients": 2, "dataset": "digits"}, "run": {"steps": 5, "seeds": (0, 1)}}


def test_the_same_settings_are_accepted() -> None:
    assert launch(refused, 2, per_rank=[SAME, SAME]) == ["", ""]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (SAME | {"run": {"steps": 6, "seeds": (0, 1)}}, "ConfigError: run.steps: 6 on rank 1 (host "),
        (SAME | {"more": 1}, "ConfigError: more: 1 on rank 1 (host "),
        (SAME | {"run": {"steps": 5}}, "ConfigError: run.seeds: not set on rank 1 (host "),
        (SAME | {"version": "0.0.1"}, 'ConfigError: version of depositum: "0.0.1" on rank 1 (host '),
        (SAME | {"missing": "data/1.npz"}, "DataError: data/1.npz: is not here"),
    ],
)
def test_what_differs_or_is_missing_ends_all(other: dict[str, object], said: str) -> None:
    """The rank concerned says what, in one line; the other says which rank stopped, and both end."""
    first, second = launch(refused, 2, per_rank=[SAME, other])
    assert second.startswith(said)
    assert first.startswith("GroupError: rank 1 (host ")
    assert first.endswith(second.split(": ", 1)[1])
    assert "\n" not in first + second


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_that_processes_cannot_share_are_refused_on_every_rank(clients: int) -> None:
    """More ranks than clients, or a remainder."""
    settings = SAME | {"problem": {"clients": clients, "dataset": "digits"}}
    for said in launch(refused, 2, per_rank=[settings, settings]):
        assert said.startswith(f"ConfigError: problem.clients: {clients} given")
        assert "--nproc-per-node" in said


def test_an_unreachable_meeting_place_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, within the time-out: not a hang, and not a stack of C++."""
    port = free_port()
    for key, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(key, str(value))
    said = alone(1.0)
    assert said.startswith("GroupError: rank 1 of 2 (host ")
    assert f"met no others at 127.0.0.1:{port} within 1 s" in said
    assert "\n" not in said


def test_a_process_that_was_started_by_itself_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
    assert "torchrun --nproc-per-node" in alone(1.0)
