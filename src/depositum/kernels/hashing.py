"""How the compiler generates code for the hash of random numbers: fused with the operations around it."""

from functools import cache
from typing import Any

import torch

from depositum.randomness import FINALISER


@cache
def register_lowering() -> None:
    """Teach torch's compiler to inline `depositum::finalise`, which it would otherwise call as a separate function.

    The compiler's interface for this is not public: where it differs, the separate call is as right.
    """
    try:
        from torch._inductor.lowering import make_pointwise, register_lowering
        from torch._inductor.virtualized import ops
    except ImportError:
        return

    def finalise(z: Any) -> Any:
        def word(value: int) -> Any:
            return ops.constant(value, torch.int64)

        for bits, factor in FINALISER:
            shifted = ops.bitwise_right_shift(z, word(bits))
            z = ops.bitwise_xor(z, ops.bitwise_and(shifted, word((1 << (64 - bits)) - 1)))
            if factor != 1:
                z = ops.mul(z, word(factor))
        return z

    register_lowering(torch.ops.depositum.finalise.default, type_promotion_kind=None)(make_pointwise(finalise))
