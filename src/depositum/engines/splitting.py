"""An iteration in two parts where that saves passes over memory: the new models first, then what is done with them.

Left whole, a compiler keeps the old models until the iteration ends, since the new ones are written in their place
last; meanwhile it works out each part of the new ones anew, for every layer that reads it. In two parts, the first
writes the new models where the old ones were, once, and the second reads them there.
"""

import copy
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node


def split(graph: GraphModule, place: int) -> list[GraphModule]:
    """The programs to run one after another in the place of a traced one, which updates its inputs in place.

    `place` is that of the models among the inputs. One program alone, the same, where their old values are needed
    beside the new ones, or something is written before they are known.
    """
    nodes = list(graph.graph.nodes)
    written = _written(graph.graph, place)
    if written is None:
        return [graph]
    old, new = written.args[0], written.args[1]
    assert isinstance(old, Node)
    if not isinstance(new, Node) or new.op != "call_function":
        return [graph]
    order = {node: k for k, node in enumerate(nodes)}
    if any(_writes(node) for node in nodes[: order[new]]):
        return [graph]
    # What the second part needs, with the new models given; among it nothing may read the old ones.
    others = [node for node in nodes if (_writes(node) or node.op == "output") and node is not written]
    needed = _ancestors(others, {new})
    if any(reader in needed and order[reader] < order[written] for reader in old.users):
        return [graph]
    # Nothing as large as the models is to be worked out twice: a gradient that both parts need, above all.
    shared = needed & _ancestors([new], set())
    if any(node.op == "call_function" and _numel(node) >= _numel(old) for node in shared):
        return [graph]
    return [_first(graph, order[written]), _second(graph, order[written])]


def _ancestors(nodes: list[Node], known: set[Node]) -> set[Node]:
    """These nodes and all that they are made of, but for what is known."""
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


def _first(graph: GraphModule, written: int) -> GraphModule:
    """The new models, and nothing else."""
    part = copy.deepcopy(graph)
    for node in reversed([n for k, n in enumerate(part.graph.nodes) if _writes(n) and k != written]):
        _erase(part.graph, node)
    return _cleaned(part)


def _second(graph: GraphModule, written: int) -> GraphModule:
    """Everything else, from the new models."""
    part = copy.deepcopy(graph)
    node = list(part.graph.nodes)[written]
    old, new = node.args[0], node.args[1]
    node.replace_all_uses_with(old)
    part.graph.erase_node(node)
    new.replace_all_uses_with(old)
    return _cleaned(part)


def _written(graph: Graph, place: int) -> Node | None:
    """The one node that writes to the input at `place`; None if it is not one, or no plain copy."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    writers = [node for node in graph.nodes if _writes(node) and inputs[place] in _written_to(node)]
    if len(writers) != 1:
        return None
    (writer,) = writers
    return writer if _schema(writer).name == "aten::copy_" else None


def _schema(node: Node) -> Any:
    """What an operator says of its arguments; None of what is no operator."""
    return getattr(node.target, "_schema", None)


def _writes(node: Node) -> bool:
    schema = _schema(node)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _written_to(node: Node) -> list[object]:
    arguments = _schema(node).arguments
    given = [*node.args, *(node.kwargs.get(a.name) for a in arguments[len(node.args) :])]
    return [
        value for value, a in zip(given, arguments, strict=True) if a.alias_info is not None and a.alias_info.is_write
    ]


def _erase(graph: Graph, node: Node) -> None:
    """Take a write away; who reads its result reads what it would have been written to."""
    written = node.args[0]
    if node.users and isinstance(written, Node):
        node.replace_all_uses_with(written)
    graph.erase_node(node)


def _cleaned(part: GraphModule) -> GraphModule:
    part.graph.eliminate_dead_code()
    part.recompile()
    return part
