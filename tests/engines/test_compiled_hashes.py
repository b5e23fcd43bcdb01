"""Compiled hashes are those of the definition, whatever the C++ compiler makes of integers that overflow."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines.compiler import compile_graph
from depositum.randomness import hash_words, permuted


@pytest.mark.slow
def test_compiled_permutations_are_those_of_the_definition() -> None:
    """Breaks without `-fwrapv`: a compiler that assumes no overflow gives other permutations."""

    def drawn(t: Tensor, positions: Tensor, size: Tensor) -> Tensor:
        return permuted(hash_words(0, 5, t // 2), positions, size)

    arguments = (torch.tensor(3), torch.arange(8), torch.tensor(8))
    graph = make_fx(drawn, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    assert torch.equal(compile_graph(graph, arguments)(*arguments), drawn(*arguments))  # type: ignore[arg-type]
