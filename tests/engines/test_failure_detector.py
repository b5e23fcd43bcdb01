"""Who is named when a peer is lost, on a machine that is busy or whose store is lost too."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from depositum.engines.distributed.failure_detector import FailureDetector

NAMES = [f"rank {r} (host h)" for r in range(4)]


@contextmanager
def heartbeats(store: Store, rank: int, every: float, at_most: int = 1000) -> Iterator[None]:
    """A process that is alive, but rarely given a processor; with `at_most`, one that dies."""
    ended = threading.Event()

    def run() -> None:
        for _ in range(at_most):
            if ended.wait(every):
                return
            store.add(f"beat/{rank}", 1)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def named_by(store: Store, suspects: list[int]) -> tuple[int, ...]:
    """The ranks that rank 0 names after a connection closed in a collective."""
    detector = FailureDetector(store, 0, NAMES, 5.0, keeps_store=False)
    try:
        return detector.lost(suspects, certain=False, late=False).ranks
    finally:
        detector.close()


def test_a_process_that_is_rarely_scheduled_is_not_taken_for_dead() -> None:
    """Rank 1 died; rank 2 beats every 0.8 s instead of 0.2. Fails if silence for 0.6 s is proof of death."""
    store = HashStore()
    with heartbeats(store, 2, 0.8), heartbeats(store, 3, 0.2):
        assert named_by(store, [1, 2, 3]) == (1,)


def test_a_last_heartbeat_that_arrives_after_the_death_does_not_hide_it() -> None:
    """Fails if all ranks are named because none of them seemed silent."""
    store = HashStore()
    with heartbeats(store, 1, 0.3, at_most=1), heartbeats(store, 2, 0.1), heartbeats(store, 3, 0.1):
        assert named_by(store, [1, 2, 3]) == (1,)


def test_a_process_that_has_found_out_and_ended_is_not_named() -> None:
    """Its heartbeats stop too; but it has left word."""
    store = HashStore()
    store.set("left/2", "1")
    with heartbeats(store, 3, 0.2):
        assert named_by(store, [1, 2, 3]) == (1,)


def test_a_process_that_died_while_it_waited_is_named() -> None:
    """On a busy machine it had waited long enough to leave a note. Fails if all others are named in its place."""
    store = HashStore()
    store.set("note/1", "[0, 2, 3]")
    with heartbeats(store, 2, 0.2), heartbeats(store, 3, 0.2):
        assert named_by(store, [1, 2, 3]) == (1,)


def test_the_reason_that_a_process_left_is_reported() -> None:
    """Fails if a full disk on one host is reported as a death on the others."""
    store = HashStore()
    leaving = FailureDetector(store, 1, NAMES, 5.0, keeps_store=False)
    leaving.leave_reason("clients/1.safetensors: cannot be written (no space left on device)")
    leaving.close()
    detector = FailureDetector(store, 0, NAMES, 5.0, keeps_store=False)
    lost = detector.lost([1], certain=True, late=False)
    detector.close()
    assert str(lost) == f"{NAMES[1]} stopped: clients/1.safetensors: cannot be written (no space left on device)"
    assert lost.ranks == (1,)


@pytest.mark.parametrize("late", [False, True])
def test_the_host_of_a_lost_store_is_named(late: bool) -> None:
    """The store's host is gone, and rank 1 with it, which waited for it: rank 2 sees only rank 1 go.

    Fails if it names rank 1, which the others do not.
    """
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    detector = FailureDetector(store, 2, NAMES, 5.0, keeps_store=False)
    del server
    lost = detector.lost([1], certain=not late, late=late)
    assert lost.ranks == (0,)
    assert str(lost).startswith("rank 0 (host h), on whose host the store is, ")
