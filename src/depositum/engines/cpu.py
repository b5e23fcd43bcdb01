"""How a traced iteration is compiled for a CPU."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.fx import GraphModule


def compile_for_cpu(traced: GraphModule, tensors: Sequence[Tensor]) -> Callable[..., object]:
    """A function of tensors like these, which does what was traced.

    The compiler is called directly. `torch.compile` would check at every call that nothing it depends on has changed,
    which in an iteration of a small model takes longer than the arithmetic; here nothing can.
    """
    return cast(Callable[..., object], torch._inductor.compile(traced, list(tensors)))
