"""Small federations on the loopback interface: real certificates, real mutual TLS, members as threads or processes."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import tomli_w
import torch

import depositum as dp
from depositum.data import Samples
from depositum.federation import certificates
from depositum.federation.agreement import Agreement, Member
from depositum.federation.member_folder import MemberFolder
from depositum.peers import run_member
from depositum.problem import Problem, Trial, as_loss
from depositum.runs.execution import RunResult

#: Ports that the system does not hand out by itself.
PORTS = range(10_000, 30_000)


def free_ports(count: int, within: Sequence[int] = PORTS) -> list[int]:
    """Ports of the loopback interface on which nothing listens, chosen at random."""
    found: list[int] = []
    for port in np.random.default_rng().permutation(within).tolist():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            break
    assert len(found) == count, f"only {len(found)} of {count} ports are free"
    return found


@dataclass
class Authority:
    """A federation's authority, and what it has signed."""

    federation: str
    key: bytes = field(default_factory=certificates.new_key)

    def __post_init__(self) -> None:
        self.pem = certificates.new_authority(self.federation, self.key)
        self.certificate = certificates.read_certificate(self.pem, "authority")

    def member(self, name: str, key: bytes, days: int = 10) -> bytes:
        """A member's certificate."""
        public = certificates.public_key(key)
        return certificates.new_member_certificate(self.federation, name, public, self.certificate, self.key, days)


def make_agreement(
    graph: nx.Graph, config: dict[str, Any], ports: Sequence[int] | None = None, **settings: Any
) -> Agreement:
    """The agreement of members m0, m1, … on a graph, all of which listen."""
    ports = ports or free_ports(len(graph))
    members = tuple(Member(f"m{i}", f"127.0.0.1:{port}") for i, port in enumerate(ports))
    edges = tuple((f"m{a}", f"m{b}") for a, b in sorted(tuple(sorted(edge)) for edge in graph.edges))
    return Agreement("test", members, edges, config, **settings)


def write_folder(
    path: Path, agreement: Agreement, name: str, authority: Authority, key: bytes | None = None
) -> MemberFolder:
    """The folder of a member, as the command `accept` writes it."""
    key = key or certificates.new_key()
    path.mkdir(parents=True, exist_ok=True)
    (path / "member.key").write_bytes(key)
    (path / "member.key").chmod(0o600)
    (path / "member.pem").write_bytes(authority.member(name, key))
    (path / "authority.pem").write_bytes(authority.pem)
    (path / "federation.toml").write_text(agreement.dump(), encoding="utf-8")
    (path / "agreement.signature").write_text(certificates.sign(authority.key, agreement.canonical()))
    own = {"name": name, "federation": agreement.name, "authority": authority.certificate.fingerprint}
    (path / "member.toml").write_text(tomli_w.dumps(own))
    return MemberFolder.open(path)


def write_folders(root: Path, agreement: Agreement, authority: Authority | None = None) -> list[MemberFolder]:
    """The folders of all members."""
    authority = authority or Authority(agreement.name)
    return [write_folder(root / name, agreement, name, authority) for name in agreement.names]


#: Inputs, classes and samples of the problem below.
D_IN, CLASSES, SAMPLES = 6, 3, 160


def dirichlet_problem(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Problem:
    """A nonconvex problem of n clients whose labels are distributed by Dir(0.5): a small network with MCP."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, CLASSES, SAMPLES)
    inputs = rng.normal(size=(SAMPLES, D_IN)) + np.eye(CLASSES, D_IN)[labels]
    owner = np.empty(SAMPLES, dtype=int)
    for label in range(CLASSES):
        share = rng.dirichlet(np.full(n, 0.5))
        owner[labels == label] = rng.choice(n, int((labels == label).sum()), p=share)
    owner[:n] = np.arange(n)  # nobody without samples
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(D_IN, 5), torch.nn.Tanh(), torch.nn.Linear(5, CLASSES)).to(dtype)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    parts = [np.flatnonzero(owner == i) for i in range(n)]
    return Problem(
        model,
        as_loss("cross-entropy"),
        Samples(torch.tensor(inputs, dtype=dtype), torch.tensor(labels)),
        (Trial(0, start, parts),),
        regularizer=dp.MCP(),
        beta=1e-3,
    )


def run_config(**run: Any) -> dict[str, Any]:
    """The run of an agreement: DEPOSITUM with T0 = 3 and mini-batches of 4, in float64."""
    settings = {
        "steps": 12,
        "period": 3,
        "batch_size": 4,
        "evaluate_every": 6,
        "checkpoint_every": 4,
        "dtype": "float64",
        "device": "cpu",
        "backend": "loop",
        "seeds": [0],
        **run,
    }
    return {
        "problem": {"regularizer": "mcp", "beta": 1e-3},
        "algorithm": {"name": "depositum", "alpha": 0.1, "gamma": 0.5},
        "run": settings,
    }


Outcome = RunResult | BaseException


def run_threads(
    folders: Sequence[MemberFolder],
    work: Callable[[MemberFolder], RunResult],
    timeout: float = 120.0,
) -> list[Outcome]:
    """What each member's run returns, or raises, each in a thread of this process."""
    outcomes: list[Outcome | None] = [None] * len(folders)

    def one(index: int) -> None:
        try:
            outcomes[index] = work(folders[index])
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(folders))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    while any(outcome is None for outcome in outcomes):
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failed and end - time.monotonic() > 10:
            end = time.monotonic() + 10  # the others wait for it, perhaps in vain
        if time.monotonic() > end:
            raise failed[0] if failed else AssertionError("a member has not come to an end")
        time.sleep(0.02)
    return [outcome for outcome in outcomes if outcome is not None]


def run_all(folders: Sequence[MemberFolder], problem: Problem, **arguments: Any) -> list[RunResult]:
    """The results of all members of a federation that trains on one problem; the first error is raised."""
    outcomes = run_threads(folders, lambda folder: run_member(folder, data=problem, **arguments))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, RunResult)]
