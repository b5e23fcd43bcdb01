"""How the backend is chosen: by a stopwatch, once per process, and never against what a person said."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import depositum as dp
from depositum.engines.graph_passes import transpose_products
from depositum.problem import Oracle, as_loss, row_model
from depositum.problem.row_model import TIE, Backend, RowModel, fastest_backend


class Stopwatch:
    """A clock that a pretended run of known speed moves on; counts the passes of each backend."""

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
def test_the_fastest_is_taken_and_a_tie_goes_to_the_first(loop: float, last: float, vmap: float, rows: int) -> None:
    """Breaks if the slower one is taken, or if vmap is left for a gain of less than a tenth."""
    per_row: dict[Backend, float] = {"vmap": vmap, "channels-last": last, "loop": loop}
    best = min(per_row.values())
    ratio = best / vmap
    if abs(ratio - TIE) < 1e-6:
        return  # neither is wrong
    choice = Stopwatch(per_row).choice(["vmap", "channels-last", "loop"], rows)
    assert choice == "vmap" if ratio > TIE else per_row[choice] == pytest.approx(best)


@given(loop=speeds, rows=st.integers(1, 10_000))
def test_measuring_takes_a_fraction_of_a_second_or_two_rows(loop: float, rows: int) -> None:
    """Breaks if all of a thousand slow clients are measured, or more clients than there are."""
    watch = Stopwatch({"vmap": loop, "loop": loop})
    watch.choice(["vmap", "loop"], rows)
    counts = {count for _, count in watch.passes}
    assert max(counts) <= rows
    assert watch.now <= max(0.8, 25 * loop)


def test_a_hopeless_backend_is_measured_once() -> None:
    """Breaks if a backend ten times slower is waited for again and again."""
    watch = Stopwatch({"vmap": 0.1, "loop": 0.01})
    assert watch.choice(["vmap", "loop"], 20) == "loop"
    assert [backend for backend, _ in watch.passes].count("vmap") == 1


def row_model_of(model: nn.Module) -> RowModel:
    return RowModel(model.double(), as_loss("cross-entropy"), "float64")


class Pictures(nn.Module):
    """Every kind of layer that another layout of images could upset."""

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
def test_channels_last_is_another_layout_of_the_same_gradients(train: bool) -> None:
    """Breaks if filters are laid out wrongly, or their gradients are written to the row in the other order."""
    torch.manual_seed(0)
    model = row_model_of(Pictures())
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
    """Breaks if a resumed run could be timed into another backend than the one it began with."""
    monkeypatch.setattr(row_model, "fastest_backend", lambda *_: pytest.fail("measured"))
    assert Oracle(problem_of(Pictures()), 2, backend=named).model.backend == named


def test_a_process_measures_once_for_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if two equal runs of a process can choose differently, or if runs of other shapes share a choice."""
    asked: list[int] = []

    def choose(run: object, candidates: list[Backend], rows: int) -> Backend:
        asked.append(rows)
        return candidates[-1]

    monkeypatch.setattr(row_model, "fastest_backend", choose)
    monkeypatch.setattr(row_model, "_fastest_backends", {})
    problem = problem_of(Pictures())
    chosen = [Oracle(problem, size).model.backend for size in (2, 2, 3)]
    assert asked == [3, 3]
    assert set(chosen) == {"loop"}


def test_measuring_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if batch norm's statistics, or torch's own random numbers, have moved before a run begins."""
    monkeypatch.setattr(row_model, "_fastest_backends", {})
    problem = problem_of(Pictures())
    before = torch.get_rng_state()
    oracle = Oracle(problem, 2)
    assert len(row_model._fastest_backends) == 1
    assert torch.equal(torch.get_rng_state(), before)
    for name, buffer in problem.model.named_buffers():
        assert torch.equal(oracle.buffers[name], buffer.expand_as(oracle.buffers[name]))


@pytest.mark.parametrize("backend", ["loop", "channels-last"])
def test_a_loop_is_one_operation_to_a_tracer(backend: Backend) -> None:
    """Breaks if a loop over a thousand clients would be unrolled into the compiler."""
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
    with torch._C._AutoDispatchBelowAutograd():  # as compiled code calls it
        torch.testing.assert_close(traced(x), gradient(x), rtol=0, atol=0)


def test_transposed_products_are_written_the_right_way_round() -> None:
    """Breaks if (a b)ᵀ is rewritten into another product, or where the product itself is still read."""
    torch.manual_seed(0)
    a, b = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)

    def once(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b).view(3, 4, 2).transpose(-1, -2).reshape(3, -1)

    def twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        product = torch.bmm(a, b)
        return product.transpose(1, 2), product.exp()

    def across(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b).transpose(0, 1)

    for function, changes in ((once, True), (twice, False), (across, False)):
        traced = make_fx(function, tracing_mode="fake")(a, b)
        before = traced.code
        transpose_products(traced)
        assert (traced.code != before) == changes
        torch.testing.assert_close(traced(a, b), function(a, b), rtol=1e-12, atol=1e-12)
    traced = make_fx(once, tracing_mode="fake")(a, b)
    transpose_products(traced)
    (product,) = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    assert all(user.target is not torch.ops.aten.transpose.int for user in product.users)
