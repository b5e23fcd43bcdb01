"""Compiled iterations of the distributed engine: local steps complete, others in pieces between their exchanges."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from depositum.algorithms import State
from depositum.engines import Costs, compilation
from depositum.engines.compilation import Accelerator, trace
from depositum.engines.distributed import DistributedEngine, Messages
from depositum.engines.distributed.async_tensor import AsyncTensor
from depositum.engines.distributed.link_iteration import Exchange, cut_at_exchanges
from depositum.engines.iteration import state_tensors
from depositum.errors import PeerLost
from tests.support.rank_engines import (
    COMPILED_STEPS,
    SEEDS,
    SETTINGS,
    compiled_trajectories,
    resumes_compiled,
    setting,
    small_network,
)
from tests.support.rank_processes import RankProcesses
from tests.support.thread_communicator import Hub, ThreadCommunicator, ThreadTransfer, run_threads

#: Methods whose exchanges differ: one, two after or beside one another, averages, degrees, push-sum, several kinds.
CASES = [
    ("depositum", 5),
    ("extra", 1),
    ("k-gt", 2),
    ("deepstorm", 2),
    ("scaffold", 3),
    ("sppdm", 1),
    ("depositum-directed", 2),
    ("proxgt-sr-o", 3),
    ("cdproxsgt", 2),
]


def engine(group: ThreadCommunicator, name: str, period: int, n: int = 4) -> DistributedEngine:
    settings = replace(SETTINGS, compile="always")
    made = DistributedEngine(*setting(name, n), group, period=period, batch_size=4, settings=settings)
    made.start()
    made.watch(20)
    return made


@pytest.fixture
def uncompiled_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced iterations are cut, but run as they are; threads trace one after another."""
    lock, traced = threading.Lock(), trace

    def alone(*arguments: Any) -> GraphModule:
        with lock:
            return traced(*arguments)

    monkeypatch.setattr(compilation, "trace", alone)
    monkeypatch.setattr(compilation, "_compile_part", lambda graph, tensors: graph)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "period"), CASES)
@pytest.mark.usefixtures("uncompiled_pieces")
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_cut_step_equals_the_step(name: str, period: int) -> None:
    """The same bits at the same cost. Fails if a rehearsal is not undone, or an exchange gets or gives other rows."""

    def work(group: ThreadCommunicator) -> tuple[dict[str, Tensor], dict[str, Tensor], Costs, Costs, set[str]]:
        plain, fast = engine(group, name, period), engine(group, name, period)
        for _ in range(11):
            plain.step()
        for count in (1, 4, 6):
            fast.advance(count)
        assert fast._accelerator is not None
        return plain.snapshot(), fast.snapshot(), plain.costs, fast.costs, fast._accelerator._compiled

    for plain, fast, costs, fast_costs, compiled in run_threads(2, work):
        assert plain.keys() == fast.keys()
        assert all(torch.equal(plain[key], fast[key]) for key in plain)
        assert costs == fast_costs
        assert "exchange" in compiled or name == "cdproxsgt"
        assert "local" in compiled or period == 1


def cut_step(name: str, exchange: Exchange, compute: Callable[[], object]) -> tuple[Callable[[], object], State]:
    """A cut step, with a call of `compute` before each piece, and the state that it advances in place."""
    made = engine(ThreadCommunicator(Hub(1), 0), name, 1)
    iteration = made.iteration
    iteration.hold(made.state)
    with iteration.rehearsing():
        iteration("exchange")
    with iteration.tracing():
        graph = trace(iteration, "exchange")

    def compiler(piece: GraphModule, tensors: object) -> Callable[..., object]:
        return lambda *arguments: (compute(), piece(*arguments))[1]

    cut = cut_at_exchanges(graph, compiler, exchange, lambda: None)
    return lambda: cut(*iteration.tensors()), iteration.state


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("extra", "compute send compute wait compute"),
        ("depositum", "compute send compute wait compute send compute wait compute"),
        ("k-gt", "compute send compute send wait compute wait compute"),
    ],
)
def test_a_cut_step_continues_while_its_rows_travel(name: str, events: str) -> None:
    """Fails if a result is awaited before it is needed."""
    recorded: list[str] = []

    def exchange(operation: str, z: Tensor) -> Tensor:
        recorded.append("send")
        return AsyncTensor(z, lambda: recorded.append("wait") or z.clone())

    step, _ = cut_step(name, exchange, lambda: recorded.append("compute"))
    step()
    assert recorded == events.split()


@pytest.mark.parametrize("name", ["depositum", "k-gt"])
def test_the_state_is_what_it_was_if_an_exchange_fails(name: str) -> None:
    """Whichever does, and as late as possible."""
    for failing in (0, 1):
        calls = itertools.count()

        def exchange(operation: str, z: Tensor, failing: int = failing, calls: Iterator[int] = calls) -> Tensor:
            def finish() -> Tensor:
                if next(calls) == failing:
                    raise PeerLost("rank 1 is gone", [1])
                return z.clone()

            return AsyncTensor(z, finish)

        step, state = cut_step(name, exchange, lambda: None)
        before = [tensor.clone() for tensor in state_tensors(state).values()]
        with pytest.raises(PeerLost):
            step()
        assert all(torch.equal(a, b) for a, b in zip(state_tensors(state).values(), before, strict=True))


@pytest.mark.usefixtures("uncompiled_pieces")
@pytest.mark.filterwarnings("ignore:iterations cannot be compiled:RuntimeWarning")
def test_a_process_that_cannot_compile_continues_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the others wait for it when they compile the next kind of step."""
    compiled_program = Accelerator._compiled_program

    def failing(self: Accelerator, kind: str, before: list[Tensor]) -> object:
        if self.iteration.links.communicator.rank == 0:  # type: ignore[attr-defined]
            raise RuntimeError("no compiler")
        return compiled_program(self, kind, before)

    monkeypatch.setattr(Accelerator, "_compiled_program", failing)

    def work(group: ThreadCommunicator) -> bool:
        plain, fast = engine(group, "depositum", 2), engine(group, "depositum", 2)
        for _ in range(5):
            plain.step()
        fast.advance(5)
        return torch.equal(plain.state.x, fast.state.x)

    assert run_threads(2, work) == [True, True]


class KeepingCommunicator(ThreadCommunicator):
    """Keeps what it sends, as members of a federation do for neighbours that restart."""

    def post(self, messages: Messages, *arguments: Any) -> ThreadTransfer:
        self.kept = [*getattr(self, "kept", []), *((message, message.clone()) for message in messages.values())]
        return super().post(messages, *arguments)


def test_what_was_sent_does_not_change_when_the_state_advances() -> None:
    """Methods that send a variable of the state itself; fails if the message is a view of it."""
    hub = Hub(2)

    def work(rank: int) -> bool:
        group = KeepingCommunicator(hub, rank)
        engine(group, "extra", 1).advance(3)
        return all(torch.equal(message, copy) for message, copy in group.kept)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Accelerator, "prepare", lambda self, kind: self._programs.update({kind: self._plain(kind)}))
        assert list(pool.map(work, range(2))) == [True, True]


def check_compiled_processes(name: str, size: int, device: str = "cpu") -> None:
    """Compiled processes, uncompiled ones and the simulator agree, for two seeds and a model with buffers."""
    sim, n = small_network(name, "never", 4), 4
    sim.advance(COMPILED_STEPS)
    with RankProcesses(compiled_trajectories, size, n, name, device) as started:
        ranks = started.results(600)
    for key, complete in sim.snapshot().items():
        for rank, (plain, compiled, _, _) in enumerate(ranks):
            share = slice(rank * n // size, (rank + 1) * n // size)
            expected = complete.view(len(SEEDS), n, -1)[:, share] if complete.ndim else complete
            for found in (plain[key], compiled[key]):
                assert np.allclose(found.reshape(expected.shape), expected, rtol=0, atol=1e-10), (key, rank)
    for _, _, same_costs, announced in ranks:
        assert same_costs
        assert announced == [0, 1], "when each kind of step first occurs"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("depositum", 2), ("prox-dgd", 4)])
def test_compiled_processes_have_the_trajectory_of_the_simulator_and_of_uncompiled_ones(name: str, size: int) -> None:
    check_compiled_processes(name, size)


@pytest.mark.slow
def test_a_compiled_run_of_processes_resumes_to_the_same_bytes() -> None:
    with RankProcesses(resumes_compiled, 2, 4, "depositum") as started:
        assert started.results(600) == [True, True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["depositum", "prox-dgd"])
def test_two_processes_on_one_gpu_have_the_trajectory_of_the_simulator(name: str) -> None:
    """Local iterations are captured; rows travel through the CPU."""
    check_compiled_processes(name, 2, "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_processes_on_one_gpu_resume_to_the_same_bytes() -> None:
    with RankProcesses(resumes_compiled, 2, 4, "depositum", "cuda") as started:
        assert started.results(600) == [True, True]
