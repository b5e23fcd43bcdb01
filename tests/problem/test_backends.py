"""The choice of a backend: by measurement, once per process, and never against the user's setting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import depositum as dp
from depositum.problem import Oracle, as_loss, row_model
from depositum.problem.row_model import TIE, Backend, RowModel, fastest_backend


class Stopwatch:
    """A simulated clock, advanced by passes of known speed; records the passes of each backend."""

    def __init__(self, per_row: dict[Backend, float]) -> None:
        self.now, self.per_row = 0.0, per_row
        self.passes: list[tuple[Backend, int]] = []

    def run(self, backend: Backend, rows: int) -> None:
        self.now += self.per_row[backend] * rows
        self.passes.append((backend, rows))

    def choice(self, candidates: list[Backend], rows: int) -> Backend:
        return fastest_backend(self.run, candidates, rows, clock=lambda: self.now)


speeds = st.floats(1e-6, 10.0)


@given(loop=speeds, last=speeds, vmap=speeds, rows=st.integers(1, 1000))
def test_the_fastest_backend_is_chosen_and_a_tie_goes_to_the_first(
    loop: float, last: float, vmap: float, rows: int
) -> None:
    """Fails if a slower backend is chosen, or if vmap is given up for a gain of less than a tenth."""
    per_row: dict[Backend, float] = {"vmap": vmap, "channels-last": last, "loop": loop}
    best = min(per_row.values())
    ratio = best / vmap
    if abs(ratio - TIE) < 1e-6:
        return  # either choice is right
    choice = Stopwatch(per_row).choice(["vmap", "channels-last", "loop"], rows)
    assert choice == "vmap" if ratio > TIE else per_row[choice] == pytest.approx(best)


@given(loop=speeds, rows=st.integers(1, 10_000))
def test_measurement_takes_a_fraction_of_a_second_or_two_rows(loop: float, rows: int) -> None:
    """Fails if all of a thousand slow clients are measured, or more rows than the run has."""
    watch = Stopwatch({"vmap": loop, "loop": loop})
    watch.choice(["vmap", "loop"], rows)
    counts = {count for _, count in watch.passes}
    assert max(counts) <= rows
    assert watch.now <= max(0.8, 25 * loop)


def test_a_much_slower_backend_is_measured_once() -> None:
    """Fails if a backend that is ten times slower is measured repeatedly."""
    watch = Stopwatch({"vmap": 0.1, "loop": 0.01})
    assert watch.choice(["vmap", "loop"], 20) == "loop"
    assert [backend for backend, _ in watch.passes].count("vmap") == 1


def row_model_of(model: nn.Module) -> RowModel:
    return RowModel(model.double(), as_loss("cross-entropy"), "float64")


class ImageModel(nn.Module):
    """Every kind of layer that the memory layout of images could affect."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4, stride=2)
        self.up = nn.ConvTranspose2d(4, 3, 2, bias=False)
        self.scores = nn.Linear(3 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2, stride=1)
        return self.scores(self.up(self.depthwise(x)).flatten(1))


@pytest.mark.parametrize("train", [True, False])
def test_channels_last_gives_the_gradients_of_the_loop(train: bool) -> None:
    """Fails if filters have the wrong layout, or their gradients are written to the row in the wrong order."""
    torch.manual_seed(0)
    model = row_model_of(ImageModel())
    x = torch.randn(3, model.layout.size, dtype=torch.float64)
    inputs, targets = torch.randn(3, 5, 1, 8, 8, dtype=torch.float64), torch.randint(0, 3, (3, 5))
    weights = torch.rand(3, 5, dtype=torch.float64)
    buffers = {k: b.expand(3, *b.shape).clone() for k, b in model.model.named_buffers()}
    found = {}
    for backend in ("loop", "channels-last"):
        model.backend = backend
        found[backend] = model.gradients(x, inputs, targets, weights, buffers, train=train)
    (plain, plain_buffers), (last, last_buffers) = found.values()
    torch.testing.assert_close(last, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last_buffers, plain_buffers, rtol=1e-12, atol=1e-12)
    values = [model.evaluate(x, inputs[0], targets[0], buffers)[0] for model.backend in ("loop", "channels-last")]
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)


def problem_of(model: nn.Module) -> dp.problem.Problem:
    torch.manual_seed(0)
    clients = [(torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))) for _ in range(3)]
    return dp.problem.from_client_data(model, clients)


@pytest.mark.parametrize("named", ["loop", "channels-last", "vmap"])
def test_a_backend_given_by_name_is_not_measured(monkeypatch: pytest.MonkeyPatch, named: Backend) -> None:
    """Fails if a resumed run could measure, and switch to, another backend than the one it started with."""
    monkeypatch.setattr(row_model, "fastest_backend", lambda *_: pytest.fail("measured"))
    assert Oracle(problem_of(ImageModel()), 2, backend=named).model.backend == named


def test_a_process_measures_once_for_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if two equal runs of a process can choose differently, or if runs of different shapes share a choice."""
    measured: list[int] = []

    def choose(run: object, candidates: list[Backend], rows: int) -> Backend:
        measured.append(rows)
        return candidates[-1]

    monkeypatch.setattr(row_model, "fastest_backend", choose)
    monkeypatch.setattr(row_model, "_fastest_backends", {})
    problem = problem_of(ImageModel())
    chosen = [Oracle(problem, size).model.backend for size in (2, 2, 3)]
    assert measured == [3, 3]
    assert set(chosen) == {"loop"}


def test_measurement_has_no_side_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it changes batch-norm statistics or torch's random state before a run starts."""
    monkeypatch.setattr(row_model, "_fastest_backends", {})
    problem = problem_of(ImageModel())
    before = torch.get_rng_state()
    oracle = Oracle(problem, 2)
    assert len(row_model._fastest_backends) == 1
    assert torch.equal(torch.get_rng_state(), before)
    for name, buffer in problem.model.named_buffers():
        assert torch.equal(oracle.buffers[name], buffer.expand_as(oracle.buffers[name]))


@pytest.mark.parametrize("backend", ["loop", "channels-last"])
def test_a_loop_is_traced_as_one_operator(backend: Backend) -> None:
    """Fails if a compiler would see an unrolled loop over a thousand clients."""
    torch.manual_seed(0)
    model = row_model_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3)))
    model.backend = backend
    x = torch.randn(4, model.layout.size, dtype=torch.float64)
    inputs, targets = torch.randn(4, 5, 1, 8, 8, dtype=torch.float64), torch.randint(0, 3, (4, 5))
    weights = torch.rand(4, 5, dtype=torch.float64)

    def gradient(x: Tensor) -> Tensor:
        return model.gradients(x, inputs, targets, weights, {}, train=True)[0]

    traced = make_fx(gradient, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    calls = [node for node in traced.graph.nodes if node.op == "call_function" and "depositum" in str(node.target)]
    assert len(calls) == 1
    assert len(list(traced.graph.nodes)) < 12
    torch.testing.assert_close(traced(x), gradient(x), rtol=0, atol=0)
    with torch._C._AutoDispatchBelowAutograd():  # as in compiled code
        torch.testing.assert_close(traced(x), gradient(x), rtol=0, atol=0)
