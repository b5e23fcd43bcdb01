"""One iteration of every row, and the tensors it works on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.fx import GraphModule

from depositum.algorithms import Algorithm, State
from depositum.engines.compiler import Compiled, Compiler
from depositum.engines.mixing import ChannelState, IdentityMix, MatrixMix
from depositum.engines.monitor import Monitor
from depositum.operators import operator
from depositum.problem import Oracle


class Iteration(ABC):
    """An algorithm's step on the rows of one process.

    `advanced` is the step itself, a new state from an old one. Calling the object advances `state` in place, which is
    how iterations are traced, captured and replayed: everything they write to keeps its memory.

    Parameters
    ----------
    period
        T0, which determines the communication phase of an iteration.
    channel_state
        The state of the channel, where an iteration advances it as part of its own.
    """

    def __init__(self, algorithm: Algorithm, oracle: Oracle, period: int, channel_state: ChannelState) -> None:
        self.algorithm, self.oracle, self.period = algorithm, oracle, period
        self.channel_state = channel_state
        self.state: State
        self.monitor: Monitor | None = None

    @abstractmethod
    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""

    # What compilation asks

    def sends(self, kind: str) -> bool:
        """Whether other processes take part in a step of this kind: it cannot be captured, and not be undone."""
        return False

    def can_be_compiled(self, kind: str) -> bool:
        """Whether a step of this kind can be traced."""
        return True

    def rehearsing(self) -> AbstractContextManager[None]:
        """What steps that will be undone are run in: nothing leaves the process."""
        return nullcontext()

    def tracing(self) -> AbstractContextManager[None]:
        """What steps are traced in, to be compiled."""
        return nullcontext()

    def reset_counts(self) -> None:
        """Forget what the step that was just run or traced has sent."""
        return

    def assembled(self, graph: GraphModule, compiler: Compiler) -> Compiled:
        """The traced step of a kind that `sends`, compiled but for what other processes take part in."""
        raise NotImplementedError

    # A state that is advanced in place

    def hold(self, state: State) -> None:
        """Copy a state into memory of its own, to be advanced in place; the channel's state likewise."""
        self.state = state._replace(**{k: v.clone() for k, v in state_tensors(state).items()})
        channel = self.channel_state
        channel.replace({name: z.clone() for name, z in channel.named().items()})

    def __call__(self, kind: str) -> None:
        self.advance(kind)
        self.observe(self.state)

    def observe(self, state: State) -> None:
        """Show a state to the monitor."""
        if self.monitor is not None:
            self.monitor.observe(state)

    def advance(self, kind: str) -> None:
        """One iteration, without the monitor."""
        channel = self.channel_state
        old = state_tensors(self.state) | channel.named()
        new = state_tensors(self.advanced(self.state, kind)) | channel.named()
        # A variable may be the old value of another (x before the step, say): it must be read before that is written.
        for name, value in new.items():
            if name in old and value is not old[name] and any(same_memory(value, other) for other in old.values()):
                new[name] = _copy_kept(value)
        for name, value in new.items():
            if name in old and value is not old[name]:
                old[name].copy_(value)
        # Memory that this step has allocated is new; all else stays where it was.
        channel.replace({name: old.get(name, new[name]) for name in channel.named()})

    def tensors(self) -> list[Tensor]:
        """Everything that an iteration writes to; the channel's memory, which may grow, comes last."""
        monitored = self.monitor.tensors if self.monitor is not None else []
        channel = self.channel_state.named().values()
        return [*state_tensors(self.state).values(), *self.oracle.buffers.values(), *monitored, *channel]

    @property
    def monitored_apart(self) -> bool:
        """Whether monitoring is left out of what is traced, and done after it."""
        return self.monitor is not None and self.monitor.is_kernel

    @property
    def index_of_x(self) -> int:
        """The index of the models among `tensors()`."""
        return list(state_tensors(self.state)).index("x")

    @contextmanager
    def on(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Work on other tensors instead of `tensors()`, for tracing."""
        state, buffers, monitor, channel = self.state, self.oracle.buffers, self.monitor, self.channel_state
        monitored, memory = monitor.tensors if monitor is not None else [], channel.named()
        names, rest = list(state_tensors(state)), iter(tensors)
        try:
            self.state = state._replace(**{name: next(rest) for name in names})
            self.oracle.buffers = {name: next(rest) for name in buffers}
            if monitor is not None:
                monitor.tensors = [next(rest) for _ in monitored]
            channel.replace(dict(zip(memory, rest, strict=True)))
            yield
        finally:
            self.state, self.oracle.buffers = state, buffers
            if monitor is not None:
                monitor.tensors = monitored
            channel.replace(memory)


class MatrixIteration(Iteration):
    """An algorithm's step on the rows of all clients.

    Parameters
    ----------
    exchange
        `mix` in the steps that communicate; in the others it is the identity.
    """

    def __init__(self, algorithm: Algorithm, oracle: Oracle, exchange: MatrixMix, period: int) -> None:
        super().__init__(algorithm, oracle, period, exchange.channel_state)
        self.exchange, self.local = exchange, IdentityMix(exchange)

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        # Iteration t evaluates its gradients at x^{t+1}, with the batches of t + 1; the start has those of 0.
        self.oracle.begin(state.t + 1)
        self.exchange.begin(state.t // self.period)
        mix = self.exchange if self.algorithm.communicates(kind) else self.local
        return self.algorithm.step(state, self.oracle, mix, kind)

    def reset_counts(self) -> None:
        self.exchange.reset_counts()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Products with W are compiled with what surrounds them."""
        self.exchange.inline = True
        try:
            yield
        finally:
            self.exchange.inline = False


def state_tensors(state: State) -> dict[str, Tensor]:
    """The variables of a state that are tensors, by name."""
    return {name: value for name, value in state._asdict().items() if isinstance(value, Tensor)}


@operator("keep")
def _copy_kept(value: Tensor) -> Tensor:
    """A copy that a compiler cannot leave out: it would take a clone for its original, written to or not."""
    return value.clone()


@_copy_kept.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are views of the same memory."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
