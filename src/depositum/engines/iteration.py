"""One iteration of every row, and the tensors it works on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from depositum.algorithms import Algorithm, State
from depositum.engines.mixing import Exchange, Local
from depositum.problem import Oracle


class Watch(Protocol):
    """Sees the state after every iteration, on the device; what it keeps is in `tensors`, updated in place.

    `by_kernels` says that it looks with kernels of its own, which a compiler can do nothing for.
    """

    tensors: list[Tensor]
    by_kernels: bool

    def observe(self, state: State) -> None: ...


class Iteration:
    """An algorithm's step on a problem's rows.

    `advanced` is the step itself, a new state from an old one. Called, it advances `state` in place, which is how
    iterations are traced, captured and replayed: all that they write to stays where it is in memory.

    Parameters
    ----------
    exchange
        `mix` in the steps that communicate; in the others it is the identity.
    period
        T0, by which iterations are counted as communication phases.
    """

    def __init__(self, algorithm: Algorithm, oracle: Oracle, exchange: Exchange, period: int) -> None:
        self.algorithm, self.oracle, self.period = algorithm, oracle, period
        self.exchange, self.local = exchange, Local(exchange)
        self.state: State
        self.watch: Watch | None = None

    def advanced(self, state: State, kind: str) -> State:
        """The state one iteration later."""
        # Iteration t evaluates its gradients at x^{t+1}, with the batches of t + 1; the start has those of 0.
        self.oracle.begin(state.t + 1)
        self.exchange.begin(state.t // self.period)
        mix = self.exchange if self.algorithm.communicates(kind) else self.local
        return self.algorithm.step(state, self.oracle, mix, kind)

    def hold(self, state: State) -> None:
        """Take a copy of a state as the one to advance, in memory of its own."""
        self.state = state._replace(**{k: v.clone() for k, v in _tensors(state).items()})

    def __call__(self, kind: str) -> None:
        self.advance(kind)
        self.observe()

    def observe(self) -> None:
        """Show the state to whoever watches."""
        if self.watch is not None:
            self.watch.observe(self.state)

    def advance(self, kind: str) -> None:
        """One iteration that nobody watches."""
        new = self.advanced(self.state, kind)
        old = _tensors(self.state)
        values = _tensors(new)
        # A variable may be the old value of another (x before the step, say): it must be read before that is written.
        for name, value in values.items():
            if value is not old[name] and any(_same_memory(value, other) for other in old.values()):
                values[name] = _kept(value)
        for name, value in values.items():
            if value is not old[name]:
                old[name].copy_(value)

    def tensors(self) -> list[Tensor]:
        """Everything that an iteration writes to."""
        watched = self.watch.tensors if self.watch is not None else []
        return [*_tensors(self.state).values(), *self.oracle.buffers.values(), *watched]

    @property
    def watched_apart(self) -> bool:
        """Whether watching is left out of what is traced, and done after it."""
        return self.watch is not None and self.watch.by_kernels

    @property
    def place_of_x(self) -> int:
        """The place of the models among `tensors()`."""
        return list(_tensors(self.state)).index("x")

    @contextmanager
    def on(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Work on others in the place of `tensors()`, for tracing."""
        state, buffers, watch = self.state, self.oracle.buffers, self.watch
        kept = watch.tensors if watch is not None else []
        names, rest = list(_tensors(state)), iter(tensors)
        try:
            self.state = state._replace(**{name: next(rest) for name in names})
            self.oracle.buffers = {name: next(rest) for name in buffers}
            if watch is not None:
                watch.tensors = list(rest)
            yield
        finally:
            self.state, self.oracle.buffers = state, buffers
            if watch is not None:
                watch.tensors = kept


def _tensors(state: State) -> dict[str, Tensor]:
    return {name: value for name, value in state._asdict().items() if isinstance(value, Tensor)}


@torch.library.custom_op("depositum::keep", mutates_args=())
def _kept(value: Tensor) -> Tensor:
    """A copy that a compiler cannot leave out: it takes a clone for its original, written to or not."""
    return value.clone()


@_kept.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
