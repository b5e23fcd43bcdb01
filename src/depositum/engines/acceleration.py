"""How iterations are made fast: compiled where that pays, and captured in CUDA graphs on a GPU.

An iteration's Python code is run once per kind of step, and traced: all that it does to tensors (draw batches, gather
samples, gradients, prox, momentum, mixing, what is watched) becomes one function that updates the state in place.
`torch.compile` makes few kernels of it, which pass over memory as rarely as the arithmetic allows. On a GPU, what a
round of iterations launches is captured once and replayed with a single launch.

Nothing here changes what is computed: every form gives the same trajectory, to rounding. What cannot be compiled or
captured (a model that asks for values while it runs) is run as it is, and that is said once.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines import worth
from depositum.engines.cpu import compile_for_cpu
from depositum.engines.iteration import Iteration
from depositum.engines.splitting import split
from depositum.engines.turning import turn_products
from depositum.problem.precision import Precision, forward_backward

#: Iterations captured in one CUDA graph, about: enough to hide a launch behind them.
LONGEST = 16

Compile = Literal["auto", "always", "never"]
Program = Callable[[], None]


class Accelerator:
    """Runs an iteration over and over.

    Parameters
    ----------
    iteration
        Holding the state to advance. What it writes to must stay in its place as long as this lives.
    precision
        Of the model's passes. Compiled code asks for it when it runs, and all products in it are of the model's
        passes: mixing and prox either use none or see to their own precision.
    compile
        `"always"`, `"never"`, or `"auto"`: where `steps` iterations repay it.
    """

    def __init__(
        self, iteration: Iteration, precision: Precision, device: torch.device, compile: Compile, steps: int = 0
    ) -> None:
        self.iteration, self.precision, self.device = iteration, precision, device
        self.steps, self.always = steps, compile == "always"
        self.compiled = self.always or (compile == "auto" and steps >= worth.SHORTEST)
        self.captures = device.type == "cuda"
        #: Told before iterations are compiled, which takes seconds to a minute.
        self.announce: Callable[[], None] = lambda: None
        self._programs: dict[str, Program] = {}
        self._compiled: set[str] = set()
        self._graphs: dict[tuple[str, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.captures else None

    def run(self, kinds: tuple[str, ...]) -> int:
        """Run iterations of these kinds in turn, or the first few of them only; how many it were."""
        graph = self._graphs.get(kinds)
        if graph is not None:
            graph.replay()
            return len(kinds)
        first, ready = kinds[0], self._programs
        if first not in ready:
            ready[first] = self._plain(first)
            if self.compiled:
                self._compile(first)
            else:
                ready[first]()
            return 1
        if self.captures and all(kind in ready and (kind in self._compiled or not self.compiled) for kind in kinds):
            self._capture(kinds)
            return 0
        ready[first]()
        return 1

    def _plain(self, kind: str) -> Program:
        def plain() -> None:
            with torch.no_grad():
                self.iteration(kind)

        return plain

    def _compile(self, kind: str) -> None:
        """Put a compiled program in the place of a kind's plain one, and run it; if that fails, the plain one.

        All iterations of a run are compiled, from the first of a kind on: one that goes on from a checkpoint would
        otherwise round some of them in another way than one that was never stopped.
        """
        before = [tensor.to("cpu", copy=True) for tensor in self.iteration.tensors()]  # a device may lack the room
        # A rehearsal: what code keeps for later is there when it is traced.
        self._programs[kind]()
        self._go_back(before)
        try:
            program = self._compiled_program(kind)
            if program is not None:
                program()
        except Exception as error:  # whatever the compiler meets in a person's own model
            program = None
            self._run_without("compiled", error)
        if program is not None:
            self._programs[kind] = program
            self._compiled.add(kind)
            return
        self.compiled = False
        self._programs = {kind: self._plain(kind) for kind in self._programs}
        self._go_back(before)
        self._programs[kind]()

    def _compiled_program(self, kind: str) -> Program | None:
        """A kind's iteration compiled; None where it would not repay itself."""
        tensors = self.iteration.tensors()
        self.iteration.exchange.inline = True
        try:
            graph = trace(self.iteration, kind)
        finally:
            self.iteration.exchange.inline = False
        if not (self.always or self._compiled or self._repays(graph)):
            return None
        self.announce()
        # A second call costs a small model's iteration more on a CPU than the passes that it saves.
        parts = [graph] if self.device.type == "cpu" else split(graph, self.iteration.place_of_x)
        functions = [self._compiler(part) for part in parts]

        def compiled() -> None:
            with torch.no_grad(), forward_backward(self.precision):
                for function in functions:
                    function(*tensors)
                if self.iteration.watched_apart:
                    self.iteration.observe()

        return compiled

    def _go_back(self, before: list[torch.Tensor]) -> None:
        """Undo what was written and counted since then."""
        for tensor, old in zip(self.iteration.tensors(), before, strict=True):
            tensor.copy_(old)
        self.iteration.exchange.count()

    def _compiler(self, graph: torch.fx.GraphModule) -> Callable[..., object]:
        turn_products(graph)
        if self.device.type == "cpu":
            return compile_for_cpu(graph, self.iteration.tensors())
        compiled: Callable[..., object] = torch.compile(graph, fullgraph=True, dynamic=False)
        return compiled

    def _repays(self, graph: torch.fx.GraphModule) -> bool:
        kinds = 2  # of most methods: with and without an exchange
        return self.steps * worth.saving(graph, self.device) > kinds * worth.cost(graph, self.device)

    def _capture(self, kinds: tuple[str, ...]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with _no_collection(), torch.cuda.graph(graph, pool=self._pool):
                for kind in kinds:
                    self._programs[kind]()
        except Exception as error:
            self.captures = False
            torch.cuda.synchronize()
            self._run_without("captured in a CUDA graph", error)
            return
        self._graphs[kinds] = graph

    def _run_without(self, what: str, error: Exception) -> None:
        """Say what was not possible, and why. Of several trials that lack memory, fewer at once are the better way."""
        if self.iteration.oracle.trials > 1 and _lacks_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        warnings.warn(f"the iterations cannot be {what}, and run without ({reason})", RuntimeWarning, stacklevel=4)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from clearing away an earlier graph in the midst of a capture, which would spoil it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trace(iteration: Iteration, kind: str) -> torch.fx.GraphModule:
    """The operations of one iteration as a function of `iteration.tensors()`, which it updates in place."""

    def body(*tensors: torch.Tensor) -> tuple[()]:
        with torch.no_grad(), iteration.on(tensors):
            iteration.advance(kind)
            if not iteration.watched_apart:
                iteration.observe()
        return ()

    # Fake tensors: nothing is computed, and no memory taken, by tracing.
    return make_fx(body, tracing_mode="fake", _allow_non_fake_inputs=True)(*iteration.tensors())


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is a device without room: a capture that ends so can fail once more."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None
