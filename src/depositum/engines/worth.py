"""Whether compiling an iteration repays what it costs, from the operations it consists of.

A rough count rather than a stopwatch, so that a run decides alike whenever and wherever it is resumed: every operation
that a compiler fuses with its neighbours saves its launch and its passes over memory; products and kernels of our own
stay as they are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class Machine:
    """Seconds per operation, bytes per second, and seconds of compilation (once, and per operation).

    Rounded from what `benchmarks/simulator.py` measures with and without compilation.
    """

    launch: float
    bandwidth: float
    compilation: float
    compilation_per_operation: float


GPU = Machine(launch=2e-6, bandwidth=2.5e12, compilation=6.0, compilation_per_operation=0.02)
CPU = Machine(launch=4e-6, bandwidth=8e9, compilation=8.0, compilation_per_operation=0.04)

#: The share of a fused operation's time that is saved.
FUSED = 0.7
#: Runs shorter than this are not even traced.
SHORTEST = 1000

_KEPT = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")


def saving(graph: GraphModule, device: torch.device) -> float:
    """Seconds saved per iteration, about."""
    machine = GPU if device.type == "cuda" else CPU
    fused = [node for node in graph.graph.nodes if _fuses(node)]
    return FUSED * sum(machine.launch + _bytes(node) / machine.bandwidth for node in fused)


def cost(graph: GraphModule, device: torch.device) -> float:
    """Seconds of compilation, about."""
    machine = GPU if device.type == "cuda" else CPU
    return machine.compilation + machine.compilation_per_operation * len(graph.graph.nodes)


def _fuses(node: Node) -> bool:
    """Whether a node is an operation of torch's own that computes, and no product."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not target.is_view and target._schema.name.removeprefix("aten::") not in _KEPT


def _bytes(node: Node) -> int:
    """What an operation reads and writes."""
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
