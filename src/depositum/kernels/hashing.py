"""How the compiler generates code for the hash of random numbers: fused with the operations around it."""

import sys
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
    _let_integers_wrap()


def _let_integers_wrap() -> None:
    """Have C++ code compiled with `-fwrapv`.

    Hashes overflow in int64. Torch's compiler writes this as signed arithmetic, of which a C++ compiler may assume
    that it does not overflow: it then optimises some hashes to other numbers.
    """
    if sys.platform == "win32":  # that compiler always lets integers wrap, and does not have the flag
        return
    from torch._inductor import cpp_builder

    original = cpp_builder._get_optimization_cflags

    def with_wrapping(*arguments: Any, **named: Any) -> tuple[list[str], list[str]]:
        flags, linking = original(*arguments, **named)
        return [*flags, "fwrapv"], linking

    cpp_builder._get_optimization_cflags = with_wrapping
