"""A slow link is waited for, and nothing is sent twice; a connection that breaks in a message is made again."""

import threading
import time
from pathlib import Path

import networkx as nx
import pytest

from depositum.peers import run_member
from tests.support.faulty_proxy import FaultyProxy
from tests.support.peer_federations import (
    dirichlet_problem,
    free_ports,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folders,
)
from tests.support.peer_processes import Ending


def lines(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [False, True])
def test_a_slow_link_is_waited_for(tmp_path: Path, breaks: bool) -> None:
    """At 10 kB/s, with a connection that is cut once or not: the end has the bytes of a fast one.

    Breaks if a message is given up, or sent again, while its bytes progress, or if a cut one is used in part.
    """
    config, problem = run_config(steps=6), dirichlet_problem(2)
    fast = write_folders(tmp_path / "fast", make_agreement(nx.path_graph(2), config))
    run_all(fast, problem)
    public, private = free_ports(2), free_ports(2)
    folders = write_folders(tmp_path / "slow", make_agreement(nx.path_graph(2), config, public))
    proxy = FaultyProxy(public[0], private[0])
    proxy.rate = 10_000.0

    def work(folder):  # type: ignore[no-untyped-def]
        if folder.name == "m1" and breaks:

            def cut() -> None:
                while not (folder.runs / "sent.csv").exists() or len(lines(folder.runs / "sent.csv")) < 3:
                    time.sleep(0.01)
                proxy.cut()
                proxy.heal()

            threading.Thread(target=cut, daemon=True).start()
        return run_member(folder, data=problem, listen=f"127.0.0.1:{private[folder.agreement.client(folder.name)]}")

    for outcome in run_threads(folders, work):
        assert not isinstance(outcome, BaseException), outcome
    proxy.close()
    assert [Ending.of(folder) for folder in folders] == [Ending.of(folder) for folder in fast]
    if not breaks:
        for folder in folders:
            sent = lines(folder.runs / "sent.csv")
            assert not any(fields[7] for fields in sent), "nothing is sent again"
            assert [int(fields[4]) for fields in sent] == list(range(len(sent)))
