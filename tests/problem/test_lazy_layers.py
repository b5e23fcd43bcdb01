"""Models with lazy layers are trained like any other; what they need is known from the data."""

import sys

import pytest
import torch
from torch import nn

import depositum as dp
from depositum.problem import from_client_data, materialized
from tests.support.small_runs import cli, write_config

CLIENTS = [(torch.randn(6, 5, generator=torch.Generator().manual_seed(i)), torch.arange(6) % 3) for i in range(3)]


def lazy_model() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


def test_fit_trains_lazy_layers():
    """Fails on a model whose parameters have no shape yet; the user's own model is not changed."""
    model = lazy_model()
    result = dp.fit(model, CLIENTS, steps=3, progress=False)
    assert result.model[0].weight.shape == (4, 5)
    assert nn.parameter.is_lazy(model[0].weight)


def test_the_start_depends_on_the_seed_only():
    """Neither on what was drawn before, nor does it change what is drawn afterwards; buffers stay as they begin."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = from_client_data(lazy_model(), CLIENTS, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first.trials[0].start, from_client_data(lazy_model(), CLIENTS, seed=3).trials[0].start)
    assert not torch.equal(first.trials[0].start, from_client_data(lazy_model(), CLIENTS, seed=4).trials[0].start)
    assert torch.equal(first.model[1].running_mean, torch.zeros(4))
    assert first.model.training


def test_a_model_without_lazy_layers_is_not_called():
    model = nn.Linear(2, 1)
    model.forward = None
    assert materialized(model, torch.zeros(3, 7), seed=0) is model


def test_lazy_layers_that_cannot_be_initialised_are_refused_in_one_line():
    with pytest.raises(
        dp.ConfigError, match=r"^model: its lazy layers cannot be initialised with \[2, 5\] of"
    ) as error:
        dp.fit(nn.Sequential(nn.LazyConv2d(3, 3)), CLIENTS, steps=1, progress=False)
    assert "\n" not in str(error.value)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.LazyLinear(3), nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_lazy_layer_that_is_not_used_is_named():
    with pytest.raises(dp.ConfigError, match="^model: its lazy parameter 'unused.weight' is not used by the model"):
        dp.fit(Unused(), CLIENTS, steps=1, progress=False)


def test_a_configuration_trains_lazy_layers(tmp_path, monkeypatch):
    (tmp_path / "lazy_net.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))\n"
    )
    config = write_config(tmp_path / "c.toml", problem={"model": "lazy_net:net"})
    result = cli("run", str(config), "--out", str(tmp_path / "out"))
    sys.modules.pop("lazy_net", None)
    assert result.code == 0, result.err
