"""On a GPU: the same trajectory as on the CPU, and a state that never sees TF32. Skipped where there is no GPU."""

import pytest
import torch
from torch import nn

import depositum as dp
from depositum.engines import EngineSettings, Simulator
from depositum.regularizers import REGULARIZERS
from tests.test_simulator import CLASSES, D_IN, seeded_problem

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def run(device: str, dtype: str, steps: int, model: nn.Module | None = None, **settings: str) -> Simulator:
    problem = seeded_problem((0, 5), model=model)
    sim = Simulator(
        problem,
        dp.ring(4),
        dp.Depositum(0.1, 0.6, "nesterov"),
        period=3,
        batch_size=6,
        settings=EngineSettings(device, dtype, **settings),
    )
    sim.start()
    for _ in range(steps):
        sim.step()
    return sim


def test_one_trajectory_on_cpu_and_gpu() -> None:
    """The same batches are drawn and float64 states agree to rounding, batch norm included."""
    model = nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    cpu, gpu = run("cpu", "float64", 60, model), run("cuda", "float64", 60, model)
    assert torch.equal(cpu.oracle.sample(50).indices, gpu.oracle.sample(50).indices.cpu())
    for name, tensor in cpu.snapshot().items():
        assert (tensor - gpu.snapshot()[name]).abs().max() <= 1e-10, name


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_averages_are_kept_whatever_the_precision_of_the_model(precision: str) -> None:
    """J y = J ν to float32 rounding after 1,000 exchanges: mixing in TF32 would drift by 1e-4 and more."""
    sim = Simulator(
        seeded_problem((0,), model=nn.Sequential(nn.Linear(D_IN, 64), nn.ReLU(), nn.Linear(64, CLASSES))),
        dp.ring(4),
        dp.Depositum(0.05, 0.6),
        batch_size=8,
        settings=EngineSettings("cuda", "float32", precision),
    )
    sim.start()
    for _ in range(1000):
        sim.step()
    gap = (sim.state.y.mean(0) - sim.state.nu.mean(0)).abs().max()
    assert gap <= 1e-5 * max(1.0, float(sim.state.nu.abs().max()))


@pytest.mark.parametrize("name", ["l1", "mcp", "scad", "l2", "simplex", "l1-ball", "group-lasso", "nuclear"])
def test_regularizers_work_there(name: str) -> None:
    from depositum.layout import Layout

    arguments = {"simplex": {"total": 1.0}, "l1-ball": {"radius": 1.0}}.get(name, {})
    h = REGULARIZERS.parse({name: arguments}, "h").make().bind(Layout.from_shapes({"w": (4, 5), "b": (4,)}))
    z = torch.randn(3, 24, dtype=torch.float64)
    on_gpu = h.prox(z.cuda(), 0.1)
    assert on_gpu.device.type == "cuda"
    assert (on_gpu.cpu() - h.prox(z, 0.1)).abs().max() <= 1e-10
    assert (h.value(on_gpu).cpu() - h.value(h.prox(z, 0.1))).abs().max() <= 1e-9
