"""Compilation of iterations, where it pays off, and their capture in CUDA graphs.

The Python code of an iteration is traced once per kind of step: everything it does to tensors (draw batches, gather
samples, gradients, prox, momentum, mixing, monitoring) becomes one function that updates the state in place.
`torch.compile` fuses it into a few kernels, which read and write memory as rarely as the arithmetic allows. On a GPU,
the launches of a round of iterations are captured once and replayed as a single launch.

None of this changes what is computed: every form gives the same trajectory, up to rounding. Iterations that cannot be
compiled or captured (because a model reads values on the host, say) run as they are, with one warning.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines.compiler import Compiled, compile_graph
from depositum.engines.engine import Compile
from depositum.engines.graph_passes import split_at_models, transpose_products
from depositum.engines.iteration import Iteration
from depositum.problem.precision import Precision, forward_backward

#: Approximate number of iterations captured in one CUDA graph: enough to hide the cost of its launch.
CAPTURE_LENGTH = 16
#: Runs with fewer iterations are never compiled, nor even traced.
MIN_COMPILED_STEPS = 1000

Program = Callable[[], None]


class Accelerator:
    """Runs an iteration repeatedly.

    Parameters
    ----------
    iteration
        Holds the state to advance. The tensors it writes to must stay at their addresses as long as this object lives.
    precision
        Precision of the model's passes. Compiled code reads it when it runs, and applies it to all its matrix products:
        mixing and prox either use none or set their own precision.
    compile
        `"always"`, `"never"`, or `"auto"`: only if the time saved over `steps` iterations exceeds that of compilation.
    """

    def __init__(
        self, iteration: Iteration, precision: Precision, device: torch.device, compile: Compile, steps: int = 0
    ) -> None:
        self.iteration, self.precision, self.device = iteration, precision, device
        self.steps, self.always = steps, compile == "always"
        #: Whether compilation is considered at all, which among processes is the same in each.
        self.may_compile = self.always or (compile == "auto" and steps >= MIN_COMPILED_STEPS)
        self.compiled = self.may_compile
        self.captures = device.type == "cuda"
        #: Called before iterations are compiled, which takes seconds to a minute.
        self.announce: Callable[[], None] = lambda: None
        self._programs: dict[str, Program] = {}
        self._compiled: set[str] = set()
        self._graphs: dict[tuple[str, ...], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.captures else None

    def run(self, kinds: tuple[str, ...]) -> int:
        """Run iterations of these kinds in order, or only the first few; returns how many were run."""
        graph = self._graphs.get(kinds)
        if graph is not None:
            graph.replay()
            return len(kinds)
        first = kinds[0]
        if not self.is_prepared(first):
            self.prepare(first)
        elif self.captures and all(self._can_be_captured(kind) for kind in kinds):
            self._capture(kinds)
            return 0
        self._programs[first]()
        return 1

    def is_prepared(self, kind: str) -> bool:
        """Whether it is known how iterations of a kind are run."""
        return kind in self._programs

    def prepare(self, kind: str) -> None:
        """Compile iterations of a kind, unless that takes longer than it saves; the state stays what it is.

        All iterations of a run are compiled, starting with the first of each kind: otherwise a run resumed from a
        checkpoint would round some of them differently from an uninterrupted run.
        """
        self._programs[kind] = self._plain(kind)
        if not (self.compiled and self.iteration.can_be_compiled(kind)):
            return
        before = set_aside(self.iteration.tensors())
        with self.iteration.rehearsing():
            # A plain run first fills all caches, so that none is filled with traced tensors.
            self._programs[kind]()
            self._restore(before)
            try:
                program = self._compiled_program(kind, before)
                if program is not None:
                    program()
            except Exception as error:  # a user-defined model may make the compiler fail in any way
                program = None
                self._warn("compiled", error)
        self._restore(before)
        if program is not None:
            self._programs[kind] = program
            self._compiled.add(kind)
            return
        self.compiled = False
        self._programs = {kind: self._plain(kind) for kind in self._programs}
        self.iteration.reset_counts()

    def _plain(self, kind: str) -> Program:
        def plain() -> None:
            with torch.no_grad():
                self.iteration(kind)

        return plain

    def _compiled_program(self, kind: str, before: list[Tensor]) -> Program | None:
        """The compiled iteration of a kind; None if compilation would take longer than it saves."""
        graph = None
        if not (self.always or self._compiled):
            first = self._first_kind(kind, before)
            graph = self._traced(first)
            if not self._pays_off(graph):
                return None
            graph = graph if first == kind else None
        graph, tensors = graph or self._traced(kind), self.iteration.tensors()
        self.announce()
        with forward_backward(self.precision):
            if self.iteration.sends(kind):
                functions = [self.iteration.assembled(graph, _compile_part)]
            else:
                # On a CPU, a second call costs an iteration of a small model more than the memory traffic it saves.
                on_cpu = self.device.type == "cpu"
                parts = [graph] if on_cpu else split_at_models(graph, self.iteration.index_of_x)
                functions = [_compile_part(part, tensors) for part in parts]

        def compiled() -> None:
            with torch.no_grad(), forward_backward(self.precision):
                for function in functions:
                    function(*tensors)
                if self.iteration.monitored_apart:
                    self.iteration.observe(self.iteration.state)

        return compiled

    def _traced(self, kind: str) -> GraphModule:
        self.iteration.reset_counts()
        with self.iteration.tracing():
            return trace(self.iteration, kind)

    def _first_kind(self, kind: str, before: list[Tensor]) -> str:
        """The first kind of a run that can be compiled, ready to be traced; by it, a resumed run decides the same."""
        iteration = self.iteration
        kinds = (iteration.algorithm.kind(t, iteration.period) for t in range(iteration.period))
        first = next(filter(iteration.can_be_compiled, kinds), kind)
        if first != kind:
            self._plain(first)()
            self._restore(before)
        return first

    def _restore(self, before: list[Tensor]) -> None:
        """Undo everything written since `before` was copied."""
        for tensor, old in zip_longest(self.iteration.tensors(), before):
            if old is None:
                tensor.zero_()  # memory of the channel, which was allocated since
            else:
                tensor.copy_(old)

    def _pays_off(self, graph: GraphModule) -> bool:
        kinds = 2  # most methods have two: with and without communication
        return self.steps * seconds_saved(graph, self.device) > kinds * compilation_seconds(graph, self.device)

    def _can_be_captured(self, kind: str) -> bool:
        if self.iteration.sends(kind) or not self.is_prepared(kind):
            return False
        return kind in self._compiled or not self.compiled

    def _capture(self, kinds: tuple[str, ...]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # "thread_local": a thread of NCCL may use the device in the meantime.
            captured = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
            with _garbage_collection_paused(), captured:
                for kind in kinds:
                    self._programs[kind]()
        except Exception as error:
            self.captures = False
            torch.cuda.synchronize()
            self._warn("captured in a CUDA graph", error)
            return
        self._graphs[kinds] = graph

    def _warn(self, what: str, error: Exception) -> None:
        """Warn that iterations cannot be compiled or captured.

        Where several trials run out of memory an error is raised instead: running fewer of them at once is faster.
        """
        if self.iteration.oracle.trials > 1 and _is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        warnings.warn(f"iterations cannot be {what}; continuing without ({reason})", RuntimeWarning, stacklevel=4)


def set_aside(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors: on their device if they take a small part of its free memory, otherwise on the CPU."""
    device = tensors[0].device
    fits = device.type == "cuda" and 4 * sum(z.nbytes for z in tensors) < torch.cuda.mem_get_info(device)[0]
    return [z.clone() if fits else z.to("cpu", copy=True) for z in tensors]


def _compile_part(graph: GraphModule, tensors: Sequence[Tensor]) -> Compiled:
    transpose_products(graph)
    return compile_graph(graph, tensors)


def trace(iteration: Iteration, kind: str) -> GraphModule:
    """The operations of one iteration as a function of `iteration.tensors()`, which it updates in place."""

    def body(*tensors: Tensor) -> tuple[()]:
        with torch.no_grad(), iteration.on(tensors):
            iteration.advance(kind)
            if not iteration.monitored_apart:
                iteration.observe(iteration.state)
        return ()

    # With fake tensors, tracing computes nothing and allocates no memory.
    return make_fx(body, tracing_mode="fake", _allow_non_fake_inputs=True)(*iteration.tensors())


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Keep Python from freeing an earlier graph during a capture, which would invalidate it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a lack of device memory: ending a failed capture can raise another."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


# When compilation pays off: an estimate from the operations of an iteration. It uses no clock, so that a run decides
# the same whenever and wherever it is resumed. Every operation that a compiler fuses with its neighbours saves a launch
# and memory traffic; matrix products and the package's own kernels stay as they are.


@dataclass(frozen=True)
class DeviceSpeed:
    """Seconds per launch, bytes per second, and seconds of compilation (once, and per operation).

    Rounded from measurements of `benchmarks/simulator.py` with and without compilation.
    """

    launch: float
    bandwidth: float
    compilation: float
    compilation_per_operation: float

    @classmethod
    def of(cls, device: torch.device) -> "DeviceSpeed":
        """The typical speed of this type of device."""
        if device.type == "cuda":
            return cls(launch=2e-6, bandwidth=2.5e12, compilation=6.0, compilation_per_operation=0.02)
        return cls(launch=4e-6, bandwidth=8e9, compilation=8.0, compilation_per_operation=0.04)


#: Share of an operation's time that fusing it saves.
FUSION_SAVING = 0.7
_NEVER_FUSED = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")


def seconds_saved(graph: GraphModule, device: torch.device) -> float:
    """Estimated seconds that compilation saves per iteration."""
    speed = DeviceSpeed.of(device)
    fused = [node for node in graph.graph.nodes if _is_fusible(node)]
    return FUSION_SAVING * sum(speed.launch + _bytes(node) / speed.bandwidth for node in fused)


def compilation_seconds(graph: GraphModule, device: torch.device) -> float:
    """Estimated seconds of compilation."""
    speed = DeviceSpeed.of(device)
    return speed.compilation + speed.compilation_per_operation * len(graph.graph.nodes)


def _is_fusible(node: Node) -> bool:
    """Whether a node is an ATen operation that computes something and is not a matrix product."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not target.is_view and target._schema.name.removeprefix("aten::") not in _NEVER_FUSED


def _bytes(node: Node) -> int:
    """Bytes that an operation reads and writes."""
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
