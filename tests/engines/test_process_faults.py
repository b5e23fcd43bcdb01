"""Processes that die, hang or disagree are named in one line, and no process is left running."""

import signal
import time
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.support.rank_engines import agree_on_settings, join_without_peers, late_once, until_lost
from tests.support.rank_processes import RankProcesses, free_port, launch

pytestmark = pytest.mark.slow

TIMEOUT = 3.0


@pytest.mark.parametrize(
    ("name", "number", "victim"),
    [
        ("depositum", signal.SIGKILL, 2),
        ("depositum", signal.SIGSTOP, 2),
        ("depositum", signal.SIGUSR1, 3),  # sleeps, and its heartbeats continue
        ("depositum", signal.SIGKILL, 0),  # keeps the store here
        ("depositum", signal.SIGSTOP, 0),
        ("fedavg", signal.SIGKILL, 1),  # uses collectives only
        ("fedavg", signal.SIGSTOP, 3),
    ],
)
def test_a_lost_peer_is_named_by_all_others(name: str, number: signal.Signals, victim: int, tmp_path: Path) -> None:
    """Within the time-out and 2 s, every other rank names it, its clients and its host, and no other rank.

    On a ring of 4, the opposite rank waits for ranks that only wait themselves: those must not be named.
    """
    with RankProcesses(until_lost, 4, 8, name, TIMEOUT, str(tmp_path)) as started:
        started.wait_for_files(tmp_path)
        began = time.monotonic()
        started.signal(victim, number)
        for rank in set(range(4)) - {victim}:
            message, ranks, at = started.receive(rank, TIMEOUT + 10)
            assert ranks == (victim,), message
            assert f"rank {victim} (clients {2 * victim}–{2 * victim + 1}, host " in message
            assert "\n" not in message
            assert at - began <= TIMEOUT + 2


def test_a_peer_that_was_late_once_is_not_named_later(tmp_path: Path) -> None:
    """It answers when it was about to be named; later, only the rank that is lost then is named."""
    with RankProcesses(late_once, 4, 4, TIMEOUT, str(tmp_path)) as started:
        started.wait_for_files(tmp_path)
        started.signal(2, signal.SIGSTOP)
        for rank in (0, 1, 3):
            message, ranks = started.receive(rank, TIMEOUT + 10)
            assert ranks == (2,), message


def test_a_restart_does_not_read_what_the_attempt_before_left_in_the_store(tmp_path: Path) -> None:
    """torchrun keeps one store for all attempts: old addresses, heartbeats or verdicts would mislead the next."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with RankProcesses(until_lost, 3, 3, "depositum", TIMEOUT, str(folder), store=(store.port, attempt)) as started:
            started.wait_for_files(folder)
            started.signal(attempt, number)
            for rank in set(range(3)) - {attempt}:
                message, ranks, _ = started.receive(rank, TIMEOUT + 10)
                assert ranks == (attempt,), message


SAME = {"problem": {"clients": 2, "dataset": "digits"}, "run": {"steps": 5, "seeds": (0, 1)}}


def test_the_same_settings_are_accepted() -> None:
    assert launch(agree_on_settings, 2, per_rank=[SAME, SAME]) == ["", ""]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (SAME | {"run": {"steps": 6, "seeds": (0, 1)}}, "ConfigError: run.steps: 6 on rank 1 (host "),
        (SAME | {"more": 1}, "ConfigError: more: 1 on rank 1 (host "),
        (SAME | {"run": {"steps": 5}}, "ConfigError: run.seeds: not set on rank 1 (host "),
        (SAME | {"version": "0.0.1"}, 'ConfigError: version of depositum: "0.0.1" on rank 1 (host '),
        (SAME | {"missing": "data/1.npz"}, "DataError: data/1.npz: no such file"),
    ],
)
def test_a_difference_or_an_error_on_one_rank_stops_all(other: dict[str, object], message: str) -> None:
    """The rank concerned reports it in one line; the other reports which rank stopped, and both end."""
    first, second = launch(agree_on_settings, 2, per_rank=[SAME, other])
    assert second.startswith(message)
    assert first.startswith("GroupError: rank 1 (host ")
    assert first.endswith(second.split(": ", 1)[1])
    assert "\n" not in first + second


@pytest.mark.parametrize("clients", [1, 3])
def test_a_number_of_clients_that_processes_cannot_share_is_rejected_on_every_rank(clients: int) -> None:
    """More ranks than clients, or a number that is not divisible."""
    settings = SAME | {"problem": {"clients": clients, "dataset": "digits"}}
    for error in launch(agree_on_settings, 2, per_rank=[settings, settings]):
        assert error.startswith(f"ConfigError: clients: {clients} given")
        assert "--nproc-per-node" in error


def test_an_unreachable_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, within the time-out, without a C++ stack trace; as a lost peer, so that a restart is tried."""
    port = free_port()
    for key, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(key, str(value))
    error = join_without_peers(1.0)
    assert error.startswith("PeerLost: rank 1 of 2 (host ")
    assert f"met no others at 127.0.0.1:{port} within 1 s" in error
    assert "\n" not in error


def test_a_process_started_without_torchrun_reports_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
    assert "WORLD_SIZE is not set" in join_without_peers(1.0)
    assert "torchrun --nproc-per-node" in join_without_peers(1.0)
