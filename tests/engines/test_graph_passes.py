"""Transformations of traced iterations: the same results, with less memory traffic."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines.compilation import trace
from depositum.engines.graph_passes import split_at_models, transpose_products
from tests.support.registered_methods import started


@pytest.mark.parametrize(
    ("name", "parts"), [("depositum", 2), ("d-psgd", 2), ("heavy-ball-gt", 1), ("deepstorm", 1), ("extra", 1)]
)
def test_an_iteration_is_split_if_it_does_not_need_the_old_models(name: str, parts: int) -> None:
    """DEPOSITUM evaluates gradients at the new models; other methods need the old ones, or a gradient at both."""
    sim = started(name, (3, 11))
    kind = sim.algorithm.kind(0, sim.period)
    sim.iteration.hold(sim.state)
    sim.iteration(kind)
    programs = split_at_models(trace(sim.iteration, kind), sim.iteration.index_of_x)
    assert len(programs) == parts
    if parts == 2:
        written = {str(n.args[0]) for n in programs[0].graph.nodes if "copy_" in str(n.target)}
        assert len(written) == 1
        assert not any("copy_" in str(n.target) and str(n.args[0]) in written for n in programs[1].graph.nodes)


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
