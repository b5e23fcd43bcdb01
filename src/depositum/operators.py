"""Functions of tensors that a tracer and a compiler take for one operation each.

`torch.library.custom_op` makes such operators too, but its first call imports torch's compiler, which a run
that compiles nothing does not need. It remains the right one for operators with a gradient or that write to arguments.
"""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")

_LIBRARY = torch.library.Library("depositum", "FRAGMENT")  # type: ignore[no-untyped-call]


class Operator(Generic[P, R]):
    """A function that is called through torch's dispatcher; its result has no gradient.

    Parameters
    ----------
    name
        Its name in `torch.ops.depositum`.
    function
        What it computes; its annotations are its signature.
    """

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.name = f"depositum::{name}"
        schema = torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(name + schema, tags=[torch.Tag.pt2_compliant_tag])  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        self._operator = getattr(torch.ops.depositum, name)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it; `kwargs` are not for torch's operators of positional arguments."""
        return cast(R, self._operator(*args, **kwargs))

    def register_fake(self, function: Callable[P, R]) -> Callable[P, R]:
        """Use a function that computes the shapes of the result alone, for tracing."""
        torch.library.register_fake(self.name, function, lib=_LIBRARY)
        return function

    def register_vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use a function for arguments with a batch dimension, as `torch.library.register_vmap` describes it."""
        torch.library.register_vmap(self.name, function, lib=_LIBRARY)
        return function


def operator(name: str) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a function an operator, `torch.ops.depositum.NAME`.

    >>> @operator("doubled")
    ... def doubled(z: torch.Tensor) -> torch.Tensor:
    ...     return 2 * z
    >>> doubled(torch.ones(2))
    tensor([2., 2.])
    """
    return lambda function: Operator(name, function)
