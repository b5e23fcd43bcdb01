"""A tensor that is still on its way: whoever uses it waits for it, and nobody else.

An algorithm writes `mixed = mix(x)` and goes on with what does not need `mixed`; the rows travel meanwhile. The
algorithm's code is the same as for the simulator, whose `mix` returns rows that are already there.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Promise(Tensor):
    """Becomes the plain tensor that `finish` returns, in the first of torch's functions that is given it.

    Torch hands every call with such a tensor to `__torch_function__` (or, from inside its C++, `__torch_dispatch__`).
    Its own `AsyncCollectiveTensor` does the like for collectives.
    """

    _finish: Callable[[], Tensor] | None
    _value: Tensor

    @staticmethod
    def __new__(cls, like: Tensor, finish: Callable[[], Tensor]) -> "Promise":
        promise: Promise = Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        promise._finish = finish
        return promise

    def settle(self) -> Tensor:
        """The plain tensor, after waiting for it."""
        if self._finish is not None:
            self._value = self._finish()
            self._finish = None
        return self._value

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*settled(args), **settled(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*settled(args), **settled(kwargs or {}))


def settled(value: Any) -> Any:
    """The same value with plain tensors for promises, inside lists, tuples and dictionaries too."""
    if isinstance(value, Promise):
        return value.settle()
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(settled, value))
    if type(value) in (list, tuple):
        return type(value)(map(settled, value))
    return value
