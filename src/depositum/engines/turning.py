"""Products of a traced iteration, written so that their results lie in memory as they are read."""

import torch
from torch.fx import GraphModule, Node


def turn_products(traced: GraphModule) -> None:
    """Write (a b)ᵀ as bᵀ aᵀ wherever a batched product is only ever read transposed, in place.

    The gradient of a linear layer's weights comes out as (xᵀ dy)ᵀ, and lies across the row that it is copied into: it
    is read element by element. A product takes transposed factors as they are, and writes it the right way round.
    """
    graph = traced.graph
    transpose, bmm = torch.ops.aten.transpose.int, torch.ops.aten.bmm.default
    for turned in graph.find_nodes(op="call_function", target=transpose):
        between = [turned]
        while (node := between[-1].args[0]).target is torch.ops.aten.view.default and _same_shape(node):
            between.append(node)
        product = between[-1].args[0]
        if product.target is not bmm or {dim % 3 for dim in turned.args[1:]} != {1, 2}:
            continue
        if any(len(node.users) > 1 for node in (*between[1:], product)):
            continue
        with graph.inserting_before(turned):
            a, b = (graph.call_function(transpose, (factor, 1, 2)) for factor in product.args)
            turned.replace_all_uses_with(graph.call_function(bmm, (b, a)))
        for node in (*between, product):
            graph.erase_node(node)
    traced.recompile()


def _same_shape(view: Node) -> bool:
    return bool(view.meta["val"].shape == view.args[0].meta["val"].shape)  # type: ignore[union-attr]
