"""Compiled graphs are stored on disk, under a key that does not depend on data."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.fx.experimental.proxy_tensor import make_fx

from depositum.engines.compiler import compile_graph, use_cache_folder


@pytest.mark.slow
def test_the_same_operations_on_other_data_are_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if data become part of the compiled code, or of its key."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def added(data: Tensor) -> tuple[Tensor, int]:
        state = torch.zeros(2, 9)

        def body(state: Tensor) -> tuple[()]:
            state.copy_(2 * state + data[1:])
            return ()

        before = counters["inductor"]["fxgraph_cache_hit"]
        program = compile_graph(make_fx(body, tracing_mode="fake", _allow_non_fake_inputs=True)(state), [state])
        program(state)
        program(state)
        return state, counters["inductor"]["fxgraph_cache_hit"] - before

    first, second = torch.randn(3, 9), torch.randn(3, 9)
    state, hits = added(first)
    torch.testing.assert_close(state, 3 * first[1:])
    assert hits == 0
    state, hits = added(second)
    torch.testing.assert_close(state, 3 * second[1:])
    assert hits == 1


def test_the_cache_is_in_the_folder_of_the_package_unless_another_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "chosen")
    use_cache_folder()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "chosen"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    for _ in range(2):
        use_cache_folder()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "depositum" / "compiled")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # as torch does when it is imported
    assert (tmp_path / "depositum" / "compiled").is_dir()


def test_without_a_writable_folder_torch_chooses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "depositum").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    use_cache_folder()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
