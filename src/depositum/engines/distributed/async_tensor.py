"""A tensor that is still on its way: whoever uses it waits for it, and nobody else.

An algorithm writes `mixed = mix(x)` and continues with what does not need `mixed`; the rows travel meanwhile. Its code
is the same as for the simulator, whose `mix` returns rows that are already there.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class AsyncTensor(Tensor):
    """Becomes the plain tensor that `finish` returns in the first torch function that is called with it.

    Torch hands every call with such a tensor to `__torch_function__` (or, from its C++ code, `__torch_dispatch__`).
    Its own `AsyncCollectiveTensor` does the same for collectives.
    """

    _finish: Callable[[], Tensor] | None
    _value: Tensor

    @staticmethod
    def __new__(cls, like: Tensor, finish: Callable[[], Tensor]) -> "AsyncTensor":
        pending: AsyncTensor = Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        pending._finish = finish
        return pending

    def wait(self) -> Tensor:
        """Wait for the plain tensor, and return it."""
        if self._finish is not None:
            self._value = self._finish()
            self._finish = None
        return self._value

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*awaited(args), **awaited(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*awaited(args), **awaited(kwargs or {}))


def awaited(value: Any) -> Any:
    """The same value with plain tensors for pending ones, inside lists, tuples and dictionaries too."""
    if isinstance(value, AsyncTensor):
        return value.wait()
    if isinstance(value, dict):
        return {k: awaited(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(awaited, value))
    if type(value) in (list, tuple):
        return type(value)(map(awaited, value))
    return value
