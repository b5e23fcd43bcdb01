"""Transformations of traced iterations: the same results, with less memory traffic."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines.graph_passes import transpose_products


def test_products_read_transposed_are_rewritten() -> None:
    """(a b)ᵀ becomes bᵀ aᵀ, with the same values, but not if the product itself is read too."""
    torch.manual_seed(0)
    a, b = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)

    def once(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b).view(3, 4, 2).transpose(-1, -2).reshape(3, -1)

    def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        product = torch.bmm(a, b)
        return product.transpose(1, 2), product.exp()

    def across(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b).transpose(0, 1)

    for function, changes in ((once, True), (twice, False), (across, False)):
        traced = make_fx(function, tracing_mode="fake")(a, b)
        before = traced.code
        transpose_products(traced)
        assert (traced.code != before) == changes
        torch.testing.assert_close(traced(a, b), function(a, b), rtol=1e-12, atol=1e-12)
    traced = make_fx(once, tracing_mode="fake")(a, b)
    transpose_products(traced)
    (product,) = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    assert all(user.target is not torch.ops.aten.transpose.int for user in product.users)
