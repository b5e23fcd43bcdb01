"""Compiled iterations of layers that are replaced for rows: the trajectory of plain steps, masks included."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import depositum as dp
from depositum.engines import EngineSettings, Simulator
from tests.support.state_difference import relative_difference


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.scores = nn.LSTM(4, 3, 2, dropout=0.3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.rnn(x)[0][:, -1])


class EmptyCache(nn.Module):
    """Concatenates with nothing, as attention with an empty cache of keys does, and relies on the result's strides."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.tensor([]).to(x), x.transpose(1, 2)], 1).view(x.shape)


MODELS = {
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    "transformer": lambda: nn.Sequential(
        EmptyCache(),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True),
        nn.Flatten(),
        nn.Linear(12, 3),
    ),
    "LSTM": Recurrent,
}


def simulator(name: str, backend: str, compile: str) -> Simulator:
    torch.manual_seed(0)
    clients = [(torch.randn(6, 3, 4).double(), torch.randint(0, 3, (6,))) for _ in range(3)]
    problem = dp.problem.from_client_data(MODELS[name](), clients)
    problem = replace(problem, trials=tuple(replace(problem.trials[0], seed=seed) for seed in (0, 5)))
    settings = EngineSettings("cpu", "float64", backend=backend, compile=compile)  # type: ignore[arg-type]
    sim = Simulator(problem, dp.ring(3), dp.Depositum(0.1, 0.5), batch_size=4, settings=settings)
    sim.start()
    sim.watch(20)
    return sim


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_compiled_layers_give_the_trajectory_of_the_loop(name: str) -> None:
    """To 1e-10 in float64, for two seeds; fails if a compiled mask differs from one that the loop draws."""
    plain, compiled = simulator(name, "loop", "never"), simulator(name, "vmap", "always")
    plain.advance(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it must not fall back
        compiled.advance(5)
    assert relative_difference(plain, compiled) <= 1e-10
