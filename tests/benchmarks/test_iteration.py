"""The work that `benchmarks/iteration.py` attributes to kernels."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import iteration


def test_products_and_convolutions() -> None:
    """Bytes of arguments and results, once; two operations per term of a sum."""
    assert iteration.work("aten::bmm", [[2, 3, 4], [2, 4, 5]], []) == (4 * 2 * (12 + 20 + 15), 2 * 2 * 3 * 4 * 5)
    x, w, y = [10, 32, 64, 8, 8], [10, 3, 3, 128, 64], [10, 32, 128, 4, 4]
    traffic, operations = 4 * sum(map(iteration.prod, (x, w, y))), 2 * 10 * 32 * 128 * 16 * 9 * 64
    forward = iteration.work("depositum::row_convolution", [x, w, [], [], [], []], ["", "", "", 2, [1, 1], [4, 4]])
    assert forward == (traffic, operations)
    for name in ("inputs", "weights"):
        assert iteration.work(f"depositum::row_convolution_{name}", [y, x, w], []) == (traffic, operations)


def test_attention_and_unknown_operators() -> None:
    heads = [[320, 3, 64, 32]] * 3
    _, operations = iteration.work("aten::_scaled_dot_product_efficient_attention", [*heads, [], []], [])
    assert operations == 2 * 2 * 320 * 3 * 64 * 64 * 32
    assert iteration.work("aten::fill_", [[7], []], []) == (28, 0)
    assert iteration.work("Memset", [], []) == (None, 0)


def test_kernels_are_matched_by_name_and_order() -> None:
    found = [iteration.Kernel("a", 1), iteration.Kernel("b", 1), iteration.Kernel("a", 1)]
    known = [iteration.Kernel("a", 9, 10, 0), iteration.Kernel("a", 9, 20, 0)]
    assert [kernel.bytes for kernel in iteration.with_work(found, known)] == [10, None, 20]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (iteration.Kernel("copy", 20, 42e6, 0), "20.0     42.00  50%         –    –  copy"),
        (iteration.Kernel("mm", 20, 0, 3.5e9), "20.0         –    –      3.50  50%  mm"),
    ],
)
def test_shares_of_the_limits(kernel: "iteration.Kernel", text: str) -> None:
    assert iteration.line(kernel, (4.2e12, 3.5e14)).strip() == text
