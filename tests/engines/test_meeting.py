"""How processes find each other: by an environment that is complete, in a store that may be older than the attempt."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from depositum.engines.distributed import meeting
from depositum.engines.distributed.meeting import Host
from depositum.engines.distributed.meeting import meet as meet_by
from depositum.engines.distributed.torch_communicator import _connect
from depositum.errors import GroupError, PeerLost
from depositum.launch import Launch, launched
from tests.support.rank_processes import free_port

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
COMPLETE = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host-0", "MASTER_PORT": "29500"}


class Gathered(NamedTuple):
    store: PrefixStore
    hosts: list[Host]


def set_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_four_variables_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if torchrun's other variables are needed, or guessed: rank 1 of 4 may be the only one of its host."""
    set_environment(monkeypatch, COMPLETE)
    assert launched()
    launch = Launch.from_environment()
    assert (launch.rank, launch.size, launch.address) == (1, 4, "host-0:29500")
    assert launch.local_rank is None
    assert launch.local_size is None


@pytest.mark.parametrize("missing", list(COMPLETE))
def test_an_environment_that_is_half_set_is_refused(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Fails if it is taken for that of a single process, which would train all clients by itself."""
    set_environment(monkeypatch, {name: value for name, value in COMPLETE.items() if name != missing})
    assert launched()
    with pytest.raises(GroupError, match=f"^{missing} is not set in the environment"):
        Launch.from_environment()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("RANK", "4", "from 0 to 3"),
        ("RANK", "-1", "from 0 to 3"),
        ("WORLD_SIZE", "four", "≥ 1"),
        ("WORLD_SIZE", "9" * 5000, "≥ 1"),
        ("MASTER_PORT", "70000", "from 1 to 65535"),
        ("LOCAL_RANK", "9", "from 0 to 3"),
        ("LOCAL_WORLD_SIZE", "5", "from 1 to 4"),
    ],
)
def test_a_variable_that_is_not_such_a_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str
) -> None:
    set_environment(monkeypatch, {**COMPLETE, name: value})
    with pytest.raises(GroupError, match=f"^{name}=.*; it must be a whole number {allowed}$") as refused:
        Launch.from_environment()
    assert len(str(refused.value)) <= 300


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"MASTER_ADDR": "host-0"}])
def test_a_single_process_is_not_launched(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Nor one on a cluster that sets an address for everyone."""
    set_environment(monkeypatch, variables)
    assert not launched()


# The meeting itself, between threads


def meet(launch: Launch, timeout: float) -> Gathered:
    """What processes do first when they join: the part of the store that is theirs, and their hosts."""
    store, part, hosts = meet_by(launch, timeout, _connect)
    return Gathered(PrefixStore(part, store), hosts)


def launch_of(rank: int, size: int, port: int, agent: bool) -> Launch:
    return Launch(rank, size, "127.0.0.1", port, None, None, agent)


@pytest.fixture
def agent_store() -> TCPStore:
    """A store that outlives attempts, as torchrun's launcher keeps one."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def gather(ranks: list[int], size: int, port: int, agent: bool, timeout: float = 20.0) -> list[Gathered]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: meet(launch_of(rank, size, port, agent), timeout), ranks))


def test_every_attempt_has_its_own_part_of_a_store(agent_store: TCPStore) -> None:
    """Fails if what one attempt wrote is read by the next."""
    first = gather([0, 1, 2], 3, agent_store.port, agent=True)
    first[0].store.set("left behind", "1")
    assert all(one.store.check(["left behind"]) for one in first)
    second = gather([2, 1, 0], 3, agent_store.port, agent=True)
    assert not any(one.store.check(["left behind"]) for one in second)
    assert len(second[0].hosts) == 3


def test_a_process_that_died_while_waiting_is_replaced(agent_store: TCPStore) -> None:
    """Rank 2 shows a token and dies; another rank 2 comes. Fails if its predecessor counts as present, or if it must
    have been restarted as often as the others.
    """
    dead = TCPStore("127.0.0.1", agent_store.port, is_master=False, wait_for_workers=False)
    dead.set("depositum/token/2", "a token of nobody")
    assert len(gather([0, 1, 2], 3, agent_store.port, agent=True)) == 3


def test_a_first_rank_that_died_while_waiting_is_replaced(agent_store: TCPStore) -> None:
    """Its successor gathers the ranks that it had admitted already."""
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(meet, launch_of(rank, 3, agent_store.port, True), 20.0) for rank in (1, 2)]
        dying = pool.submit(meet, launch_of(0, 4, agent_store.port, True), 0.5)  # waits for a rank 3, in vain
        with pytest.raises(PeerLost, match=r"^rank 3 did not come to 127.0.0.1:"):
            dying.result()
        parts = [meet(launch_of(0, 3, agent_store.port, True), 20.0), *(one.result() for one in waiting)]
    parts[0].store.set("here", "1")
    assert all(part.store.check(["here"]) for part in parts)


def test_who_waits_connects_again_when_the_store_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 1 meets the store of a rank 0 that then ends, and later that of its successor at the same address.

    Fails if a restarted process gives up because the others end a moment later.
    """
    port = free_port()
    old = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, launch_of(1, 2, port, False), 20.0)
        old.set_timeout(timedelta(seconds=10))
        old.wait(["depositum/token/1"])
        del old
        first = meet(launch_of(0, 2, port, False), 20.0)
        first.store.set("here", "1")
        assert waiting.result().store.check(["here"])
    assert "Traceback" not in capfd.readouterr().err


def test_who_is_awaited_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], agent_store: TCPStore
) -> None:
    """Every rank that waits prints the missing ones, in one line each. Fails if a peer that never comes is silence."""
    monkeypatch.setattr(meeting, "REPORT_EVERY", 0.2)
    with ThreadPoolExecutor(2) as pool:
        for waiting in [pool.submit(meet, launch_of(rank, 4, agent_store.port, True), 1.0) for rank in (0, 2)]:
            with pytest.raises(PeerLost, match=r"^rank 1, rank 3 did not come .* within 1 s") as lost:
                waiting.result()
            assert lost.value.ranks == (1, 3)
            assert len(str(lost.value)) <= 300
    lines = capfd.readouterr().err.splitlines()
    for rank in (0, 2):
        assert f"rank {rank} waits for rank 1, rank 3 (1 s left)" in lines


def test_who_did_not_come_is_named_although_rank_0_gives_up_first() -> None:
    """Rank 0 admits rank 1, and ends with the store while both wait for rank 2. Fails if rank 1 then reports that it
    met nobody.
    """
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, launch_of(1, 3, port, False), 2.0)
        store.wait(["depositum/token/1"], timedelta(seconds=10))
        store.set("depositum/part/host/0", '["host", ""]')
        store.set(f"depositum/admitted/{store.get('depositum/token/1').decode()}", "depositum/part")
        store.wait(["depositum/part/host/1"], timedelta(seconds=10))
        time.sleep(1.0)
        del store
        message = rf"^rank 2 did not come to 127.0.0.1:{port} within 2 s, and rank 0 has left;"
        with pytest.raises(PeerLost, match=message) as lost:
            waiting.result()
        assert lost.value.ranks == (2,)


def test_a_store_that_does_not_exist_is_awaited(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By its address, and without a C++ stack trace for every attempt to connect."""
    monkeypatch.setattr(meeting, "REPORT_EVERY", 0.3)
    port = free_port()
    with pytest.raises(
        PeerLost, match=rf"^rank 1 of 2 \(host .*\) met no others at 127.0.0.1:{port} within 1 s"
    ) as lost:
        meet(launch_of(1, 2, port, False), 1.0)
    assert lost.value.ranks == (0,)
    assert lost.value.exit_code == 75
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith(f"rank 1 waits for rank 0 at 127.0.0.1:{port} (") for line in lines), lines


def test_a_first_rank_waits_for_its_port(capfd: pytest.CaptureFixture[str]) -> None:
    """The process before it may still hold the port: it keeps the store until the others know whom they lost."""
    port = free_port()
    old = [TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)]
    threading.Timer(0.6, old.clear).start()
    began = time.monotonic()
    assert len(meet(launch_of(0, 1, port, False), 20.0).hosts) == 1
    assert time.monotonic() - began > 0.3
