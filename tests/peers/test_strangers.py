"""Whoever is not a neighbour is refused, with one line in the log, at no cost to the run."""

import random
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch

from depositum.federation import certificates
from depositum.federation.member_folder import MemberFolder
from depositum.interrupt import Interrupted
from depositum.peers import PeerCommunicator, run_member
from depositum.peers.resumption import START, Candidate
from depositum.peers.stranger_log import StrangerLog
from depositum.runs.execution import RunResult
from tests.support.peer_federations import (
    Authority,
    dirichlet_problem,
    make_agreement,
    run_all,
    run_config,
    run_threads,
    write_folder,
    write_folders,
)
from tests.support.peer_processes import Ending, Slow
from tests.support.peer_strangers import credentials, place_of, sent_raw, shake_hands

N = 3


class Attacked:
    """A federation of three on a path that is attacked while it trains."""

    def __init__(self, root: Path, authority: Authority, **settings: object) -> None:
        self.authority, self.root = authority, root
        self.agreement = make_agreement(nx.path_graph(N), run_config(steps=60), **settings)
        self.folders = write_folders(root, self.agreement, self.authority)
        self._thread = threading.Thread(target=self._train, daemon=True)

    def _train(self) -> None:
        problem = dirichlet_problem(N)
        self.outcomes = run_threads(
            self.folders, lambda folder: run_member(folder, data=problem, callbacks=[Slow(0.02)])
        )

    def __enter__(self) -> "Attacked":
        self._thread.start()
        history = self.folders[1].runs / "history.csv"
        while not history.exists():
            time.sleep(0.02)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join(120)
        for outcome in self.outcomes:
            assert not isinstance(outcome, BaseException), outcome

    @property
    def endings(self) -> list[Ending]:
        return [Ending.of(folder) for folder in self.folders]

    def log(self) -> list[str]:
        lines = (self.folders[1].runs / "logs" / "m1.log").read_text().splitlines()
        return [line for line in lines if "refused a connection" in line]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Ending]:
    """The end of the same federation without strangers."""
    agreement = make_agreement(nx.path_graph(N), run_config(steps=60))
    folders = write_folders(tmp_path_factory.mktemp("undisturbed"), agreement)
    run_all(folders, dirichlet_problem(N))
    return [Ending.of(folder) for folder in folders]


def test_strangers_are_refused_with_one_line_each(tmp_path: Path, expected: list[Ending]) -> None:
    """Everyone whom PEERS 6 lists; the run ends in the bytes that it has without them.

    Breaks if one of them gets as far as a frame, if one is not logged, or if one costs the run anything.
    """
    own = Authority("test")

    def files(name: str, of: Authority, member: str = "m0", begin: float = -1.0, end: float = 10.0) -> tuple[str, str]:
        return credentials(tmp_path / name, of, member, begin, end)

    revoked = files("revoked", own)
    fingerprint = certificates.read_certificate(Path(revoked[0]).read_bytes(), "").sha256
    with (attacked := Attacked(tmp_path / "federation", own, revoked=(fingerprint,))):
        place = place_of(attacked.folders[1])
        cases = [
            ("did not return a certificate|no certificate", lambda: shake_hands(place, None)),
            ("another authority", lambda: shake_hands(place, files("other", Authority("test")))),
            ("has expired", lambda: shake_hands(place, files("expired", own, begin=-3.0, end=-1.0))),
            ("not yet valid; is the clock right", lambda: shake_hands(place, files("early", own, begin=1.0))),
            ("the certificate of 'm0' was revoked", lambda: shake_hands(place, revoked)),
            ("'m7' is not a member", lambda: shake_hands(place, files("unknown", own, member="m7"))),
            ("not a neighbour of 'm1'", lambda: shake_hands(place, files("self", own, member="m1"))),
            ("plain HTTP", lambda: sent_raw(place, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")),
            ("does not speak TLS|closed during the handshake|version", lambda: sent_raw(place, b"garbage" * 40)),
            ("closed during the handshake", lambda: sent_raw(place, b"")),
        ]
        for pattern, attempt in cases:
            before = attacked.log()
            attempt()
            end = time.monotonic() + 10
            while len(attacked.log()) == len(before) and time.monotonic() < end:
                time.sleep(0.02)
            (line,) = attacked.log()[len(before) :]
            assert any(part in line for part in pattern.split("|")), line
    assert attacked.endings == expected


@pytest.mark.parametrize("loser", ["m0", "m1"])
def test_a_revoked_certificate_is_refused_at_both_ends(loser: str, tmp_path: Path) -> None:
    """By the end that listens (m0), and by the end that dials: it would else train with whoever holds the key."""
    authority = Authority("test")
    agreement = make_agreement(nx.path_graph(2), run_config())
    folders = {folder.name: folder for folder in write_folders(tmp_path / "before", agreement, authority)}
    thief, honest = folders.pop(loser), folders.popitem()[1]
    fingerprint = certificates.read_certificate(thief.certificate_pem, "").sha256
    after = replace(agreement, revoked=(fingerprint,))
    honest = write_folder(tmp_path / "after", after, honest.name, authority, honest.key_pem)
    stop = threading.Event()
    logs: dict[str, list[str]] = {"m0": [], "m1": []}

    def connect(folder: MemberFolder) -> None:
        log = logs[folder.name].append
        communicator = PeerCommunicator(folder, torch.device("cpu"), log, stop.is_set)
        counts = dict.fromkeys(folder.agreement.neighbours(folder.name), 0)
        with pytest.raises(Interrupted):
            communicator.connect([Candidate(START, counts, counts)])
        communicator.close()

    threads = [threading.Thread(target=connect, args=(folder,)) for folder in (honest, thief)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    reason = f"the certificate of '{loser}' was revoked"
    while not any(reason in line for line in logs[honest.name]) and time.monotonic() < end:
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert any(reason in line for line in logs[honest.name])
    assert not any(line.startswith("connected") for lines in logs.values() for line in lines)


def test_whoever_answers_at_a_members_address_must_have_its_certificate(tmp_path: Path) -> None:
    """Another member there is refused by the end that dials, which waits for the right one and trains with it."""
    authority, problem = Authority("test"), dirichlet_problem(2)
    folders = write_folders(tmp_path, make_agreement(nx.path_graph(2), run_config()), authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*credentials(tmp_path / "other", authority, "m1"))
    log = folders[1].runs / "logs" / "m1.log"
    reason = "its certificate is of another member or server"

    def work(folder: MemberFolder) -> RunResult:
        if folder.name == "m0":
            with socket.create_server(place_of(folder)) as impostor:
                while not (log.exists() and reason in log.read_text()):
                    plain, _ = impostor.accept()
                    with plain, suppress(OSError):
                        context.wrap_socket(plain, server_side=True).close()
        return run_member(folder, data=problem)

    for outcome in run_threads(folders, work):
        assert not isinstance(outcome, BaseException), outcome


def test_random_bytes_cost_the_run_nothing(tmp_path: Path, expected: list[Ending]) -> None:
    """A few hundred byte strings, among them beginnings of TLS; `benchmarks/peer_strangers.py` throws 10,000."""
    rng = random.Random(0)
    with (attacked := Attacked(tmp_path / "federation", Authority("test"))):
        place = place_of(attacked.folders[1])
        for _ in range(150):
            content = rng.randbytes(rng.choice([1, 5, 100, 3000]))
            sent_raw(place, rng.choice([b"", b"\x16\x03\x01\x02\x00\x01"]) + content)
    assert attacked.endings == expected


def test_the_log_of_strangers_is_bounded() -> None:
    """The first lines of each reason, then how many more; reasons without end are counted together."""
    lines: list[str] = []
    log = StrangerLog(lines.append, lines=3, seconds=1000)
    for _ in range(50):
        log.refused("10.0.0.1", "no certificate")
    for i in range(500):
        log.refused("10.0.0.2", f"reason {i}")
    assert len(lines) < 3 + 100 + 4
    log.close()
    assert any("refused 47 more connections: no certificate" in line for line in lines)
    assert log.total == 550
