"""One iteration of every row, and the tensors it works on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State
from depositum.engines.mixing import IdentityMix, MatrixMix
from depositum.engines.monitor import Monitor
from depositum.problem import Oracle


class Iteration:
    """An algorithm's step on a problem's rows.

    `advanced` is the step itself, a new state from an old one. Calling the object advances `state` in place, which is
    how iterations are traced, captured and replayed: everything they write to keeps its memory.

    Parameters
    ----------
    exchange
        `mix` in the steps that communicate; in the others it is the identity.
    period
        T0, which determines the communication phase of an iteration.
    """

    def __init__(self, algorithm: Algorithm, oracle: Oracle, exchange: MatrixMix, period: int) -> None:
        self.algorithm, self.oracle, self.period = algorithm, oracle, period
        self.exchange, self.local = exchange, IdentityMix(exchange)
        self.state: State
        self.monitor: Monitor | None = None

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        # Iteration t evaluates its gradients at x^{t+1}, with the batches of t + 1; the start has those of 0.
        self.oracle.begin(state.t + 1)
        self.exchange.begin(state.t // self.period)
        mix = self.exchange if self.algorithm.communicates(kind) else self.local
        return self.algorithm.step(state, self.oracle, mix, kind)

    def hold(self, state: State) -> None:
        """Copy a state into memory of its own, to be advanced in place; the channel's state likewise."""
        self.state = state._replace(**{k: v.clone() for k, v in _tensors(state).items()})
        channel = self.exchange.channel_state
        channel.replace({name: z.clone() for name, z in channel.named().items()})

    def __call__(self, kind: str) -> None:
        self.advance(kind)
        self.observe()

    def observe(self) -> None:
        """Show the state to the monitor."""
        if self.monitor is not None:
            self.monitor.observe(self.state)

    def advance(self, kind: str) -> None:
        """One iteration, without the monitor."""
        channel = self.exchange.channel_state
        old = _tensors(self.state) | channel.named()
        new = _tensors(self.advanced(self.state, kind)) | channel.named()
        # A variable may be the old value of another (x before the step, say): it must be read before that is written.
        for name, value in new.items():
            if name in old and value is not old[name] and any(_same_memory(value, other) for other in old.values()):
                new[name] = _copy_kept(value)
        for name, value in new.items():
            if name in old and value is not old[name]:
                old[name].copy_(value)
        # Memory that this step has allocated is new; all else stays where it was.
        channel.replace({name: old.get(name, new[name]) for name in channel.named()})

    def tensors(self) -> list[Tensor]:
        """Everything that an iteration writes to; the channel's memory, which may grow, comes last."""
        monitored = self.monitor.tensors if self.monitor is not None else []
        channel = self.exchange.channel_state.named().values()
        return [*_tensors(self.state).values(), *self.oracle.buffers.values(), *monitored, *channel]

    @property
    def monitored_apart(self) -> bool:
        """Whether monitoring is left out of what is traced, and done after it."""
        return self.monitor is not None and self.monitor.is_kernel

    @property
    def index_of_x(self) -> int:
        """The index of the models among `tensors()`."""
        return list(_tensors(self.state)).index("x")

    @contextmanager
    def on(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Work on other tensors instead of `tensors()`, for tracing."""
        state, buffers, monitor, channel = self.state, self.oracle.buffers, self.monitor, self.exchange.channel_state
        monitored, memory = monitor.tensors if monitor is not None else [], channel.named()
        names, rest = list(_tensors(state)), iter(tensors)
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


def _tensors(state: State) -> dict[str, Tensor]:
    return {name: value for name, value in state._asdict().items() if isinstance(value, Tensor)}


@torch.library.custom_op("depositum::keep", mutates_args=())
def _copy_kept(value: Tensor) -> Tensor:
    """A copy that a compiler cannot leave out: it would take a clone for its original, written to or not."""
    return value.clone()


@_copy_kept.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
