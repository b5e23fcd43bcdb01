"""On a GPU: the same trajectory as on the CPU, and no TF32 outside the model's passes. Skipped without a GPU."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

import depositum as dp
from depositum import models
from depositum.algorithms import State
from depositum.channels import Channel
from depositum.engines import EngineSettings, Monitor, Simulator
from depositum.engines.mixing import MatrixMix
from depositum.metrics.measures import consensus
from depositum.problem import Oracle, from_client_data, streaming
from depositum.problem.row_layers import convolution
from depositum.problem.streaming import Streamed
from depositum.regularizers import REGULARIZERS
from tests.support.channel_cases import CHANNEL_CASES, CHANNEL_METHODS
from tests.support.layer_cases import LAYERS, RANDOM_LAYERS, classifier
from tests.support.registered_methods import METHODS, beta_for, network_for, supported_period
from tests.support.seeded_problems import CLASSES, D_IN, N, seeded_problem
from tests.support.state_difference import relative_difference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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


def test_cpu_and_gpu_give_the_same_trajectory() -> None:
    """With the same batches; float64 states agree to rounding, including batch norm."""
    model = nn.Sequential(nn.Linear(D_IN, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))
    cpu, gpu = run("cpu", "float64", 60, model), run("cuda", "float64", 60, model)
    assert torch.equal(cpu.oracle.sample(50).indices, gpu.oracle.sample(50).indices.cpu())
    for name, tensor in cpu.snapshot().items():
        assert (tensor - gpu.snapshot()[name]).abs().max() <= 1e-10, name


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("compile", ["never", "always"])
def test_the_tracking_invariant_holds_at_every_precision_of_the_model(precision: str, compile: str) -> None:
    """J y = J ν to float32 rounding after 3,000 exchanges; mixing in TF32 would drift by at least 1e-4."""
    sim = Simulator(
        seeded_problem((0,), model=nn.Sequential(nn.Linear(D_IN, 64), nn.ReLU(), nn.Linear(64, CLASSES))),
        dp.ring(4),
        dp.Depositum(0.05, 0.6),
        batch_size=8,
        settings=EngineSettings("cuda", "float32", precision, compile=compile),  # type: ignore[arg-type]
    )
    sim.start()
    sim.advance(3000)
    gap = (sim.state.y.mean(0) - sim.state.nu.mean(0)).abs().max()
    assert gap <= 1e-5 * max(1.0, float(sim.state.nu.abs().max()))


def made(name: str, dtype: str, compile: str) -> Simulator:
    """A simulator of any method on two seeds, with a monitor, as in a run."""
    method = dp.algorithm(name)
    sim = Simulator(
        seeded_problem((3, 11), beta=beta_for(method)),
        network_for(method),
        method,
        period=supported_period(name),
        batch_size=4,
        settings=EngineSettings("cuda", dtype, "auto" if dtype == "float64" else "float32", compile=compile),  # type: ignore[arg-type]
    )
    sim.start()
    sim.watch(50)
    return sim


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("compile", ["never", "always"])
@pytest.mark.parametrize("name", METHODS)
def test_captured_and_compiled_iterations_equal_plain_steps(name: str, compile: str, dtype: str) -> None:
    """Over 20 iterations, relative to 1e-9 in float64 and 1e-5 in float32 without TF32."""
    plain, fast = made(name, dtype, compile), made(name, dtype, compile)
    for _ in range(20):
        plain.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it must not fall back
        fast.advance(20)
    assert relative_difference(fast, plain) <= (1e-9 if dtype == "float64" else 1e-5)
    assert plain.costs == fast.costs
    torch.compiler.reset()


def test_iterations_that_cannot_be_captured_run_uncaptured_with_a_warning() -> None:
    """The prox of the nuclear norm synchronizes with the device, which a CUDA graph cannot contain."""

    def nuclear() -> Simulator:
        problem = dataclasses.replace(seeded_problem((0,)), regularizer=dp.NuclearNorm().on("*weight"))
        settings = EngineSettings("cuda", "float64", compile="never")
        sim = Simulator(problem, dp.ring(N), dp.Depositum(0.1, 0.5), period=2, batch_size=4, settings=settings)
        sim.start()
        return sim

    plain, fast = nuclear(), nuclear()
    for _ in range(10):
        plain.step()
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        fast.advance(10)
    assert relative_difference(fast, plain) <= 1e-12


class OutOfMemoryMonitor(Monitor):
    """Allocates more memory than available while iterations are captured."""

    def observe(self, state: State) -> None:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 45, device="cuda")
        super().observe(state)


def test_lack_of_memory_in_a_capture_is_raised_for_several_trials_only() -> None:
    """The caller of several trials can run fewer at once; a single one runs uncaptured."""

    def simulator(seeds: tuple[int, ...], monitor: type[Monitor] = OutOfMemoryMonitor) -> Simulator:
        settings = EngineSettings("cuda", "float64", compile="never")
        problem, method = seeded_problem(seeds), dp.Depositum(0.1, 0.5)
        sim = Simulator(problem, dp.ring(N), method, period=2, batch_size=4, settings=settings)
        sim.start()
        sim.watch(20)
        sim.iteration.monitor = monitor(seeds, range(N), N, 20, sim.state)
        return sim

    with pytest.raises(torch.OutOfMemoryError):
        simulator((0, 5)).advance(10)
    plain, one = simulator((0,), Monitor), simulator((0,))
    plain.advance(10)
    with pytest.warns(RuntimeWarning, match="cannot be captured"):
        one.advance(10)
    assert relative_difference(one, plain) <= 1e-12


CONVOLUTIONS = {
    "one channel": (2, 3, 1, 8, 8, 5, 3, 1, 1, True),
    "stride": (2, 4, 3, 7, 9, 6, 3, 2, 1, False),
    "one pixel": (3, 2, 4, 1, 1, 7, 3, 1, 1, True),
    "stem": (2, 2, 3, 12, 12, 8, 7, 2, 3, False),
    "1 x 1": (2, 3, 5, 4, 4, 6, 1, 2, 0, True),
    "wide": (1, 2, 20, 2, 2, 33, 3, 1, 1, False),
    "wide stride": (2, 2, 40, 4, 4, 70, 3, 2, 1, True),
    "the CNN's second": (3, 32, 16, 16, 16, 32, 3, 1, 1, True),
    "ResNet's first": (2, 32, 3, 32, 32, 64, 7, 2, 3, False),
    "ResNet's 8 x 8": (2, 32, 64, 8, 8, 64, 3, 1, 1, False),
    "ResNet's 8 x 8 to 4 x 4": (2, 32, 64, 8, 8, 128, 3, 2, 1, False),
    "ResNet's shortcut": (2, 32, 64, 8, 8, 128, 1, 2, 0, False),
    "ResNet's 2 x 2": (2, 32, 256, 2, 2, 256, 3, 1, 1, False),
    "ResNet's 2 x 2 to 1 x 1": (2, 32, 256, 2, 2, 512, 3, 2, 1, False),
    "ResNet's 1 x 1": (2, 32, 512, 1, 1, 512, 3, 1, 1, False),
    "ResNet's odd": (2, 32, 128, 7, 7, 128, 3, 2, 1, False),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_row_convolutions_equal_those_of_torch(name: str) -> None:
    """Outputs and all gradients, to TF32's 1e-3, with the same bits in every call; x may be shared by all rows."""
    rows, batch, channels, high, wide, outputs, kernel, stride, pad, has_bias = CONVOLUTIONS[name]
    torch.manual_seed(0)
    x = torch.randn(rows, batch, channels, high, wide, device="cuda", requires_grad=True)
    w = torch.randn(rows, outputs, channels, kernel, kernel, device="cuda", requires_grad=True)
    b = torch.randn(rows, outputs, device="cuda", requires_grad=True) if has_bias else None
    leaves = [x, w, b] if b is not None else [x, w]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    biases = exact[2] if has_bias else [None] * rows
    y = torch.stack([nn.functional.conv2d(exact[0][i], exact[1][i], biases[i], stride, pad) for i in range(rows)])
    dy = torch.randn(y.shape, device="cuda")
    expected = [y, *torch.autograd.grad(y, exact, dy.double())]

    def by_kernels() -> list[torch.Tensor]:
        def one(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return convolution(a, weight, bias, stride, pad)

        out = torch.vmap(one)(*leaves)
        return [out, *torch.autograd.grad(out, leaves, dy)]

    found = by_kernels()
    for actual, reference in zip(found, expected, strict=True):
        assert float((actual - reference).norm() / reference.norm()) <= 2e-3
    assert all(torch.equal(a, b) for a, b in zip(found, by_kernels(), strict=True))
    shared = torch.vmap(lambda weight: convolution(x[0].detach(), weight, None, stride, pad))(w.detach())
    expected_shared = torch.stack(
        [nn.functional.conv2d(exact[0][0], exact[1][i], None, stride, pad) for i in range(rows)]
    )
    assert float((shared - expected_shared).norm() / expected_shared.norm()) <= 2e-3


@pytest.mark.parametrize("model", ["cnn", "resnet18"])
def test_row_layers_compute_the_same_model(model: str) -> None:
    """Gradients and batch-norm statistics with `vmap` equal those of the plain loop.

    In TF32 for the CNN only: batch norm over single pixels amplifies the error of 1e-3 of TF32 to a seventh of the
    gradient, in any implementation, and the convolutions of ResNet-18 are tested individually above.
    """

    def gradients(backend: str, precision: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        module = models.build({model: {"width": 8}} if model == "resnet18" else model, (1, 32, 32), 3, 0)
        generator = torch.Generator().manual_seed(0)
        clients = [
            (torch.randn(20, 1, 32, 32, generator=generator), torch.randint(0, 3, (20,), generator=generator))
            for _ in range(3)
        ]
        if exactly := precision == "float64":
            clients = [(inputs.double(), targets) for inputs, targets in clients]
        settings = {"dtype": torch.float64} if exactly else {"precision": precision}
        oracle = Oracle(from_client_data(module, clients), 8, device="cuda", backend=backend, **settings)  # type: ignore[arg-type]
        return oracle.grad(oracle.start(), oracle.sample()), oracle.buffers

    if model == "cnn":
        (fast, _), (plain, _) = gradients("vmap", "tf32"), gradients("loop", "float32")
        assert float((fast - plain).norm() / plain.norm()) <= 1e-2
    (twin, twin_buffers), (exact, exact_buffers) = gradients("vmap", "float64"), gradients("loop", "float64")
    assert float((twin - exact).norm() / exact.norm()) <= 1e-12
    for key, buffer in exact_buffers.items():
        assert float((twin_buffers[key] - buffer).double().norm() / buffer.double().norm().clamp(min=1)) <= 1e-12, key


@pytest.mark.parametrize(("rows", "d", "count"), [(8, 18, 3), (20, 300, 4), (400, 20, 2), (266, 1000, 6)])
def test_monitoring_kernels_equal_the_plain_computation(rows: int, d: int, count: int) -> None:
    """The consensus error, and the first iteration at which each row is not finite."""
    from depositum.kernels.monitoring import record

    generator = torch.Generator("cuda").manual_seed(0)
    variables = [torch.randn(rows, d, device="cuda", generator=generator) for _ in range(count)]
    errors = torch.full((7, 2), -5.0, dtype=torch.float64, device="cuda")
    first_bad = torch.full((rows, count), -1, dtype=torch.int64, device="cuda")
    for t, (variable, row) in enumerate([(1, 0), (0, rows - 1), (count - 1, 3), (1, 5)], start=9):
        record(variables, 1, torch.tensor(t, device="cuda"), errors, first_bad)
        expected = consensus(variables[1].double(), 2)
        assert torch.allclose(errors[t % 7], expected, rtol=1e-12, atol=0, equal_nan=True)
        variables[variable][row, d // 2] = float("inf") if row else float("nan")
    assert int((errors == -5).sum()) == 6
    found = {(row, variable): int(first_bad[row, variable]) for row, variable in (first_bad >= 0).nonzero().tolist()}
    assert found == {(0, 1): 10, (rows - 1, 0): 11, (3, count - 1): 12}


@pytest.mark.parametrize("compile", ["never", "always"])
def test_samples_in_host_memory_give_the_same_trajectory(compile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that do not fit on the device are read from host memory, with the same results to the bit."""

    def state() -> torch.Tensor:
        sim = Simulator(
            seeded_problem((0, 5)),
            dp.ring(N),
            dp.Depositum(0.1, 0.5),
            period=3,
            batch_size=4,
            settings=EngineSettings("cuda", compile=compile),  # type: ignore[arg-type]
        )
        sim.start()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            sim.advance(30)
        assert isinstance(sim.oracle.inputs, Streamed) == (streaming.RESIDENT_SHARE == 0)
        return sim.state.x

    resident = state()
    monkeypatch.setattr(streaming, "RESIDENT_SHARE", 0)
    assert torch.equal(resident, state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sparse_mixing_kernel_equals_the_dense_product(dtype: torch.dtype) -> None:
    """To rounding, for two trials on an irregular graph."""
    network = dp.erdos_renyi(150, 0.05, seed=3)
    mix = MatrixMix(network, 2, torch.device("cuda"), dtype)
    assert not mix.pattern.dense
    z = torch.randn(300, 1300, device="cuda", dtype=dtype)
    expected = torch.tensor(network.W, device="cuda") @ z.view(2, 150, -1).double()
    error = (mix(z).view(2, 150, -1).double() - expected).abs().max()
    assert float(error) <= (1e-13 if dtype == torch.float64 else 1e-6) * float(z.abs().max())


@pytest.mark.parametrize("name", ["l1", "mcp", "scad", "l2", "simplex", "l1-ball", "group-lasso", "nuclear"])
def test_regularizers_equal_those_on_the_cpu(name: str) -> None:
    from depositum.layout import Layout

    arguments = {"simplex": {"total": 1.0}, "l1-ball": {"radius": 1.0}}.get(name, {})
    h = REGULARIZERS.parse({name: arguments}, "h").make().bind(Layout.from_shapes({"w": (4, 5), "b": (4,)}))
    z = torch.randn(3, 24, dtype=torch.float64)
    on_gpu = h.prox(z.cuda(), 0.1)
    assert on_gpu.device.type == "cuda"
    assert (on_gpu.cpu() - h.prox(z, 0.1)).abs().max() <= 1e-10
    assert (h.value(on_gpu).cpu() - h.value(h.prox(z, 0.1))).abs().max() <= 1e-9


@pytest.mark.parametrize("compile", ["never", "always"])
@pytest.mark.parametrize("name", CHANNEL_METHODS)
@pytest.mark.parametrize("channel", CHANNEL_CASES, ids=repr)
def test_channels_are_captured_and_compiled(channel: Channel, name: str, compile: str) -> None:
    """With their memory and their counts of bytes, as by plain steps."""

    def make() -> Simulator:
        settings = EngineSettings("cuda", "float64", compile=compile)  # type: ignore[arg-type]
        method = dp.algorithm(name)
        problem = seeded_problem((0, 5), beta=beta_for(method))
        sim = Simulator(
            problem, network_for(method), method, period=2, batch_size=4, settings=settings, channel=channel
        )
        sim.start()
        sim.watch(50)
        return sim

    plain, fast = make(), make()
    for _ in range(40):
        plain.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # it must not fall back
        fast.advance(40)
    assert plain.costs == fast.costs
    for key, value in plain.snapshot().items():
        torch.testing.assert_close(fast.snapshot()[key], value, rtol=1e-8, atol=1e-10, msg=key)
    torch.compiler.reset()


def layer_simulator(name: str, device: str, backend: str, compile: str) -> Simulator:
    shape, model = classifier(name)
    generator = torch.Generator().manual_seed(1)
    clients = [
        (
            torch.randn(6, *shape, generator=generator, dtype=torch.float64),
            torch.randint(0, 3, (6,), generator=generator),
        )
        for _ in range(3)
    ]
    settings = EngineSettings(device, "float64", backend=backend, compile=compile)  # type: ignore[arg-type]
    problem = from_client_data(model, clients)
    sim = Simulator(problem, dp.ring(3), dp.Depositum(0.1, 0.5), period=2, batch_size=4, settings=settings)
    sim.start()
    sim.watch(20)
    return sim


@pytest.mark.parametrize("compile", ["never", "always"])
@pytest.mark.parametrize("name", [*LAYERS, *RANDOM_LAYERS])
def test_every_layer_gives_the_trajectory_of_the_loop_on_the_cpu(name: str, compile: str) -> None:
    """All rows at once, captured and compiled; fails if a kernel, a mask or a running statistic differs.

    Falling back to one client after another, or to iterations that are not captured, is a failure too.
    """
    loop, rows = layer_simulator(name, "cpu", "loop", "never"), layer_simulator(name, "cuda", "vmap", compile)
    loop.advance(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        rows.advance(4)
    assert rows.oracle.model.backend == "vmap"
    assert relative_difference(loop, rows) <= 1e-8
