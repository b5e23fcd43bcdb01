"""Connections that are only being made, that come too late, or that break while nothing is read."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import networkx as nx
import pytest
import torch

from depositum.errors import GroupError
from depositum.federation.agreement import Member
from depositum.interrupt import Interrupted
from depositum.peers import PeerCommunicator, run_member
from depositum.peers.connecting import _listening_socket
from depositum.peers.conversation import Bell, Lost, converse
from depositum.peers.resumption import START, Candidate
from tests.support.peer_federations import (
    dirichlet_problem,
    free_ports,
    make_agreement,
    run_all,
    run_config,
    write_folders,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_member_listens_at_every_address_of_this_computer(host: str) -> None:
    (port,) = free_ports(1)
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this computer has no IPv6")
    with _listening_socket((host, port)), socket.create_connection((host, port), timeout=5):
        pass


def test_a_federation_trains_over_ipv6(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this computer has no IPv6")
    agreement = make_agreement(nx.path_graph(2), run_config())
    members = tuple(Member(m.name, (m.address or "").replace("127.0.0.1", "[::1]")) for m in agreement.members)
    folders = write_folders(tmp_path, replace(agreement, members=members))
    assert all(result.finished for result in run_all(folders, dirichlet_problem(2)))


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    agreement = make_agreement(nx.path_graph(2), run_config())
    folder = write_folders(tmp_path, agreement)[0]
    address = agreement.members[0].address or ""
    with (
        socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))),
        pytest.raises(GroupError) as caught,
    ):
        run_member(folder, data=dirichlet_problem(2))
    problem = "cannot listen there (address already in use); is another program listening on this port?"
    assert str(caught.value) == f"{address}: {problem}"


def test_a_member_stops_at_once_while_nobody_answers_it(tmp_path: Path) -> None:
    """Breaks if Ctrl-C waits until a connection that is being made is given up, for each neighbour in turn."""
    agreement = make_agreement(nx.star_graph(2), run_config())
    folder = write_folders(tmp_path, agreement)[1]
    port = int((agreement.members[0].address or "").rpartition(":")[2])
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", port)) as silent:
        communicator = PeerCommunicator(folder, torch.device("cpu"), lambda _: None, stop.is_set)
        taken: list[socket.socket] = []

        def take() -> None:
            taken.append(silent.accept()[0])  # and says nothing
            stop.set()

        threading.Thread(target=take, daemon=True).start()
        with pytest.raises(Interrupted):
            communicator.connect([Candidate(START, {"m0": 0}, {"m0": 0})])
        began = time.monotonic()
        communicator.close()
        assert time.monotonic() - began < 5
        taken[0].close()


class Offered:
    """A connection that a neighbour has opened."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_connection_that_comes_too_late_is_closed(tmp_path: Path) -> None:
    """Breaks if it stays open without being served, or if the files of a closed edge are written to."""
    folder = write_folders(tmp_path, make_agreement(nx.path_graph(2), run_config()))[0]
    communicator = PeerCommunicator(folder, torch.device("cpu"), lambda _: None, lambda: True)
    with pytest.raises(Interrupted):
        communicator.connect([Candidate(START, {"m1": 0}, {"m1": 0})])
    communicator.close()
    files = [(tmp_path / f"{i}").open("wb", buffering=0) for i in range(20)]  # they take free descriptors
    late = Offered()
    communicator.edges[1].offer(cast(Any, late))
    assert late.closed
    assert not any(file.tell() for file in files)


class Paused:
    """A connection over which nothing is read now."""

    def __init__(self, sock: socket.socket) -> None:
        self.fileno = sock.fileno

    def flush(self) -> bool:
        return True


def test_a_connection_that_breaks_while_nothing_is_read_is_given_up() -> None:
    """Breaks if the thread then runs in circles until it has something to send."""
    here, there = socket.socketpair()
    turns = 0

    def reading() -> Iterator[None]:
        nonlocal turns
        while True:
            turns += 1
            yield None

    def writing() -> Iterator[None]:
        while True:
            yield None

    bell = Bell()
    threading.Timer(0.2, there.close).start()
    end = time.monotonic() + 2
    with pytest.raises(Lost):
        converse(
            cast(Any, Paused(here)), bell, cast(Any, reading()), cast(Any, writing()), lambda: end < time.monotonic()
        )
    assert turns < 10
    bell.close()
    here.close()
