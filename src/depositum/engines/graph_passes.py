"""Transformations of a traced iteration that save memory traffic before it is compiled.

`split_at_models` cuts an iteration in two: the first part computes the new models, the second everything else. In one
part, a compiler keeps the old models until the end of the iteration, because the new ones overwrite them last, and it
recomputes each section of the new models for every layer that reads it. In two, the first part overwrites the old
models once and the second reads the new ones from memory.

`transpose_products` rewrites matrix products so that their results are stored in the order in which they are read.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node


def split_at_models(graph: GraphModule, index: int) -> list[GraphModule]:
    """The programs to run one after another instead of a traced one that updates its inputs in place.

    `index` is the position of the models among the inputs. Returns the given program alone if it needs the old models
    besides the new ones, or writes something before the new ones are known.
    """
    nodes = list(graph.graph.nodes)
    write = _write_to_input(graph.graph, index)
    if write is None:
        return [graph]
    old, new = write.args[0], write.args[1]
    assert isinstance(old, Node)
    if not isinstance(new, Node) or new.op != "call_function":
        return [graph]
    order = {node: k for k, node in enumerate(nodes)}
    if any(_writes(node) for node in nodes[: order[new]]):
        return [graph]
    # Nothing that the second part needs, given the new models, may read the old ones.
    others = [node for node in nodes if (_writes(node) or node.op == "output") and node is not write]
    needed = _ancestors(others, {new})
    if any(reader in needed and order[reader] < order[write] for reader in old.users):
        return [graph]
    # Nothing as large as the models may be computed twice, above all a gradient that both parts need.
    shared = needed & _ancestors([new], set())
    if any(node.op == "call_function" and _numel(node) >= _numel(old) for node in shared):
        return [graph]
    return [_part_computing_models(graph, order[write]), _part_after_models(graph, order[write])]


def transpose_products(graph: GraphModule) -> None:
    """Rewrite (a b)ᵀ as bᵀ aᵀ, in place, wherever a batched product is only read transposed.

    The gradient of a linear layer's weights is computed as (xᵀ dy)ᵀ, so that copying it into a row reads memory with a
    stride. Products accept transposed factors without a copy, and the rewritten one is stored contiguously.
    """
    nodes = graph.graph
    transpose, bmm = torch.ops.aten.transpose.int, torch.ops.aten.bmm.default
    for transposed in nodes.find_nodes(op="call_function", target=transpose):
        chain = [transposed]
        while (node := chain[-1].args[0]).target is torch.ops.aten.view.default and _keeps_shape(node):
            chain.append(node)
        product = chain[-1].args[0]
        if product.target is not bmm or {dim % 3 for dim in transposed.args[1:]} != {1, 2}:
            continue
        if any(len(node.users) > 1 for node in (*chain[1:], product)):
            continue
        with nodes.inserting_before(transposed):
            a, b = (nodes.call_function(transpose, (factor, 1, 2)) for factor in product.args)
            transposed.replace_all_uses_with(nodes.call_function(bmm, (b, a)))
        for node in (*chain, product):
            nodes.erase_node(node)
    graph.recompile()


def writes_to_input(node: Node) -> bool:
    """Whether a node of a traced program writes to one of its inputs, rather than to memory of its own."""
    return _writes(node) and any(isinstance(z, Node) and z.op == "placeholder" for z in _written_arguments(node))


def _part_computing_models(graph: GraphModule, write: int) -> GraphModule:
    """The program that writes the new models and nothing else; `write` is the position of the node that does."""
    part = copy.deepcopy(graph)
    for node in reversed([n for k, n in enumerate(part.graph.nodes) if _writes(n) and k != write]):
        _erase_write(part.graph, node)
    return _cleaned(part)


def _part_after_models(graph: GraphModule, write: int) -> GraphModule:
    """The program that does everything else, given the new models."""
    part = copy.deepcopy(graph)
    node = list(part.graph.nodes)[write]
    old, new = node.args[0], node.args[1]
    node.replace_all_uses_with(old)
    part.graph.erase_node(node)
    new.replace_all_uses_with(old)
    return _cleaned(part)


def _ancestors(nodes: list[Node], known: set[Node]) -> set[Node]:
    """These nodes and all that they depend on, except through `known` ones."""
    found: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found and node not in known:
            found.add(node)
            left += node.all_input_nodes
    return found


def _numel(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0


def _keeps_shape(view: Node) -> bool:
    return bool(view.meta["val"].shape == view.args[0].meta["val"].shape)  # type: ignore[union-attr]


def _write_to_input(graph: Graph, index: int) -> Node | None:
    """The only node that writes to the input at `index`; None if there is not exactly one, or it is not a copy."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    writers = [node for node in graph.nodes if _writes(node) and inputs[index] in _written_arguments(node)]
    if len(writers) != 1:
        return None
    (writer,) = writers
    return writer if _schema(writer).name == "aten::copy_" else None


def _schema(node: Node) -> Any:
    """The schema of an operator; None for nodes that are not operators."""
    return getattr(node.target, "_schema", None)


def _writes(node: Node) -> bool:
    schema = _schema(node)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _written_arguments(node: Node) -> list[object]:
    arguments = _schema(node).arguments
    given = [*node.args, *(node.kwargs.get(a.name) for a in arguments[len(node.args) :])]
    return [
        value for value, a in zip(given, arguments, strict=True) if a.alias_info is not None and a.alias_info.is_write
    ]


def _erase_write(graph: Graph, node: Node) -> None:
    """Remove a write; users of its result use its unchanged target instead."""
    written = node.args[0]
    if node.users and isinstance(written, Node):
        node.replace_all_uses_with(written)
    graph.erase_node(node)


def _cleaned(part: GraphModule) -> GraphModule:
    part.graph.eliminate_dead_code()
    part.recompile()
    return part
