"""Torch's compiler applied to traced iterations, with a cache on disk that all runs share.

The key of compiled code in the cache consists of the operations and of the shapes of what they read, without the data
or the state: a run with the same model, batch size, clients and hyper-parameters finds what an earlier one compiled.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node

from depositum.kernels import hashing
from depositum.kernels.hashing import register_lowering
from depositum.randomness import FINALISER

#: Compiled code, called with tensors of the shapes, strides and types that it was compiled for.
Compiled = Callable[..., object]
#: What compiles a graph for arguments like the given ones.
Compiler = Callable[[GraphModule, Sequence[Tensor]], Compiled]

#: Tensors with at most this many numbers become constants of the compiled code.
MAX_CONSTANT = 8


def compile_graph(graph: GraphModule, tensors: Sequence[Tensor]) -> Compiled:
    """The compiled form of a traced function, for arguments like `tensors`.

    The compiler is called directly: `torch.compile` would trace the graph once more, and check at every call that
    nothing it depends on has changed (nothing can).
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # slow to import

    register_lowering()
    use_cache_folder()
    constants = _constants_as_inputs(graph)
    # The cache needs a `ShapeEnv`, even for shapes that never change.
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    settings: Any = torch.compiler.config
    with torch.no_grad(), tracing(TracingContext(fake)), settings.patch(cache_key_tag=_own_code()):
        function = cast(Compiled, torch._inductor.compile(graph, [*tensors, *constants]))
    return lambda *arguments: function(*arguments, *constants)


def use_cache_folder() -> None:
    """Let torch's compiler store its code in `~/.cache/depositum/compiled` (or the like in `XDG_CACHE_HOME`).

    It stays where `TORCHINDUCTOR_CACHE_DIR` says, if set, or in torch's temporary folder if this one is not writable.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow to import

    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if chosen is not None and chosen != default_cache_dir():  # to which torch itself may have set the variable
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "depositum" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


@cache
def _own_code() -> str:
    """What distinguishes this version of the package's own code generation in the compiler's cache."""
    return hashlib.sha256(Path(hashing.__file__).read_bytes() + repr(FINALISER).encode()).hexdigest()


def _constants_as_inputs(graph: GraphModule) -> list[Tensor]:
    """Make the tensors that a graph refers to (samples, weights of mixing, …) its last inputs, and return them.

    As constants they would be part of the compiled code, and of its key in the cache.
    """
    nodes = graph.graph
    found: dict[str, tuple[Node, Tensor]] = {}
    inputs = nodes.find_nodes(op="placeholder")
    if not inputs:
        return []
    last = inputs[-1]
    for node in nodes.find_nodes(op="get_attr"):
        value = getattr(graph, node.target, None)
        if not isinstance(value, Tensor) or value.numel() <= MAX_CONSTANT:
            continue
        if node.target not in found:
            with nodes.inserting_after(last):
                last = nodes.placeholder(f"constant_{len(found)}")
            last.meta = dict(node.meta)
            found[node.target] = last, value
        node.replace_all_uses_with(found[node.target][0])
        nodes.erase_node(node)
    graph.recompile()
    return [value for _, value in found.values()]
