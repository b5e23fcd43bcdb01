"""Every kind of layer for all rows at once, against one client after another; random ones against their definition."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from depositum.problem import Oracle, as_loss
from depositum.problem.row_functions import RowFunctions, _aligned_weights
from depositum.problem.row_model import RowModel
from tests.support.layer_cases import LAYERS, RANDOM_LAYERS, Computed, classifier
from tests.support.oracle_problems import make_problem, points, start_of

ROWS, BATCH = 3, 4
NOISE = torch.tensor([11, -22, 3_000_000_000_000])


def case_of(name: str) -> tuple[RowModel, tuple[Tensor, ...], dict[str, Tensor]]:
    """A row model, its rows `[3, d]`, inputs, targets, weights, and buffers."""
    shape, model = classifier(name)
    rows = RowModel(model, as_loss("cross-entropy"), "float64")
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    x = start_of(model) + 0.3 * normal(ROWS, rows.layout.size)
    targets = torch.randint(0, 3, (ROWS, BATCH), generator=generator)
    arguments = x, normal(ROWS, BATCH, *shape), targets, normal(ROWS, BATCH).abs()
    return rows, arguments, {k: b.expand(ROWS, *b.shape).clone() for k, b in model.named_buffers()}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", [*LAYERS, *RANDOM_LAYERS])
def test_all_rows_at_once_give_the_gradients_of_one_after_another(name: str, train: bool) -> None:
    """To 1e-10, buffers too, and likewise evaluation; fails if a mask differs, or if dropout is on in evaluation."""
    rows, arguments, buffers = case_of(name)
    found = {}
    for backend in ("loop", "vmap"):
        rows.backend = backend
        found[backend] = rows.gradients(*arguments, buffers, train=train, noise=NOISE)
    torch.testing.assert_close(found["vmap"], found["loop"], rtol=1e-10, atol=1e-10)
    x, inputs, targets, weights = arguments
    values = []
    for backend in ("loop", "vmap"):
        rows.backend = backend
        values.append(rows.evaluate(x, inputs[0], targets[0], buffers)[0])
    torch.testing.assert_close(values[1], values[0], rtol=1e-10, atol=1e-10)
    if (train and name in LAYERS) or not train:
        # The loop itself is plain torch: the module with the row's parameters, its buffers and `backward`.
        for i in range(ROWS):
            plain = copy.deepcopy(rows.model).train(train)
            state = {**rows.layout.views(x[i]), **{k: b[i] for k, b in buffers.items()}}
            plain.load_state_dict({**plain.state_dict(), **state})
            (F.cross_entropy(plain(inputs[i]), targets[i], reduction="none") * weights[i]).sum().backward()
            expected = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                                  for p in plain.parameters()])  # fmt: skip
            torch.testing.assert_close(found["loop"][0][i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", RANDOM_LAYERS)
def test_random_numbers_depend_on_the_rows_word_alone(name: str) -> None:
    """Not on the other rows of a call, nor on torch's generators, which are left as they are."""
    rows, (x, inputs, targets, weights), buffers = case_of(name)
    rows.backend = "vmap"
    torch.manual_seed(0)
    state = torch.get_rng_state()
    every, _ = rows.gradients(x, inputs, targets, weights, buffers, train=True, noise=NOISE)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    last = slice(2, 3)
    alone, _ = rows.gradients(
        x[last], inputs[last], targets[last], weights[last], {k: b[last] for k, b in buffers.items()}, train=True,
        noise=NOISE[last],
    )  # fmt: skip
    torch.testing.assert_close(alone, every[last], rtol=1e-10, atol=1e-10)
    other, _ = rows.gradients(x, inputs, targets, weights, buffers, train=True, noise=NOISE + 1)
    assert not torch.allclose(other, every)


SHARES = {
    "dropout": (lambda x: F.dropout(x, 0.3), 0.3),
    "channels 1d": (lambda x: F.dropout1d(x.flatten(2), 0.25).view(x.shape), 0.25),
    "channels 2d": (lambda x: F.dropout2d(x, 0.6), 0.6),
    "channels 3d": (lambda x: F.dropout3d(x[..., None], 0.1)[..., 0], 0.1),
}


@pytest.mark.parametrize("name", SHARES)
def test_dropout_drops_its_share_and_keeps_the_mean(name: str) -> None:
    """Within five standard errors; whole channels are dropped where that is what the layer does."""
    drop, p = SHARES[name]
    with RowFunctions(torch.tensor(5), batched=False) as functions:
        out = drop(torch.ones(60, 50, 4, 4, dtype=torch.float64))
    assert functions.draws == 1
    units = out if name == "dropout" else out[:, :, :1, :1]
    if name != "dropout":
        assert torch.equal(out, units.expand_as(out))
    assert set(out.unique().tolist()) == {0.0, 1 / (1 - p)}
    share = float((units == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / units.numel()) ** 0.5
    samples = (units == 0).double().flatten(1)  # neighbouring elements are independent
    correlation = float(((samples[:, 1:] - p) * (samples[:, :-1] - p)).mean()) / (p * (1 - p))
    assert abs(correlation) < 5 / samples[:, 1:].numel() ** 0.5


def test_dropout_with_probability_0_and_1() -> None:
    x = torch.randn(3, 4)
    with RowFunctions(torch.tensor(5), batched=False) as functions:
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.dropout(x, 0.5, training=False), x)
        assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
        assert torch.equal(F.alpha_dropout(x, 0.5), x)
    assert functions.draws == 0


@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_is_that_of_torch(drop: object) -> None:
    """The two values that a zero is mapped to are the same as torch's, and so are mean and variance, about 0 and 1."""
    x = torch.randn(400, 100, 2, dtype=torch.float64)
    torch.manual_seed(0)
    expected = drop(torch.zeros(50, 9, 2, dtype=torch.float64), 0.3, True)  # type: ignore[operator]
    with RowFunctions(torch.tensor(5), batched=False):
        found = drop(torch.zeros(50, 9, 2, dtype=torch.float64), 0.3, True)  # type: ignore[operator]
        out = drop(x, 0.3, True)  # type: ignore[operator]
    torch.testing.assert_close(found.unique(), expected.unique(), rtol=1e-6, atol=1e-6)
    assert abs(float(out.mean())) < 0.03
    assert abs(float(out.var()) - 1) < 0.05


def test_uniform_and_normal_numbers_have_their_distributions() -> None:
    with RowFunctions(torch.tensor(7), batched=False):
        uniform, normal = torch.rand(40_000, dtype=torch.float64), torch.randn(40_000, dtype=torch.float64)
        exponential = torch.empty(40_000, dtype=torch.float64).exponential_(2.0)
        half = torch.rand(10_000, dtype=torch.bfloat16)
        integers = torch.rand(3, 2).shape, torch.rand([3, 2]).shape, torch.rand(size=(3, 2)).shape
    assert integers == ((3, 2),) * 3
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    assert float(half.max()) < 1
    assert abs(float(uniform.mean()) - 0.5) < 5 * (1 / 12 / 40_000) ** 0.5
    assert abs(float(normal.mean())) < 5 / 200
    assert abs(float(normal.var()) - 1) < 5 * (2 / 40_000) ** 0.5
    assert abs(float(exponential.mean()) - 0.5) < 5 * 0.5 / 200


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_masks_are_those_of_seed_client_and_iteration(backend: str) -> None:
    """In a batch of seeds, alone, and where only some clients are held here (one process among several)."""
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    both = Oracle(make_problem(model, seeds=(0, 1)), 2, dtype=torch.float64, backend=backend)
    alone = Oracle(make_problem(model, seeds=(1,)), 2, dtype=torch.float64, backend=backend)
    some = Oracle(make_problem(model, seeds=(0, 1)), 2, dtype=torch.float64, backend=backend, clients=[1, 2])
    found = {}
    for key, oracle, rows in (("both", both, slice(0, 6)), ("alone", alone, slice(3, 6)), ("some", some, [1, 2, 4, 5])):
        oracle.begin(torch.tensor(9))
        found[key] = oracle.grad(points(both)[rows], oracle.sample())
    torch.testing.assert_close(found["alone"], found["both"][3:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["some"], found["both"][[1, 2, 4, 5]], rtol=1e-12, atol=1e-12)


def test_the_order_of_parameters_and_buffers_is_that_of_the_model() -> None:
    """A replaced layer must not rename, reorder or copy what a checkpoint contains."""
    for name in LAYERS:
        _, model = classifier(name)
        rows = RowModel(model, as_loss("cross-entropy"), "float64")
        assert list(rows.vmap_model.state_dict()) == list(model.state_dict())
        for own, other in zip(rows.vmap_model.parameters(), model.parameters(), strict=True):
            assert own is other


class Counts(nn.Module):
    """Control flow that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else 2 * x


def packed(self: Computed, x: Tensor) -> Tensor:
    lengths = [6, *[4] * (len(x) - 1)]
    return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][0][-1]


@pytest.mark.parametrize(
    ("model", "shape", "where"),
    [
        (nn.Sequential(nn.Linear(6, 4), Counts(), nn.Linear(4, 3)), (6,), r"Layer '1' \(Counts\): "),
        (nn.Sequential(Computed(packed, rnn=nn.LSTM(8, 3, batch_first=True))), (6, 8), r"Layer '0.rnn' \(LSTM\): "),
        (Computed(lambda self, x: self.m(x)[:, torch.randperm(3)], m=nn.Linear(6, 3)), (6,), "It draws random numbers"),
    ],
)
def test_a_layer_that_needs_the_loop_is_named_with_the_cost(
    model: nn.Module, shape: tuple[int, ...], where: str
) -> None:
    """Once, for a run of several clients; fails if a slow run does not say which layer makes it slow."""
    with pytest.warns(RuntimeWarning, match=f"one after another, 3 passes in every iteration instead of one.*{where}"):
        oracle = Oracle(make_problem(model, shape), 4, dtype=torch.float64)
    assert oracle.model.backend == "loop"
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        Oracle(make_problem(model, shape), 4, dtype=torch.float64, backend="loop")  # as the user asked
        Oracle(make_problem(model, shape), 4, dtype=torch.float64, clients=[1])  # there is only one


@pytest.mark.parametrize("name", ["MultiheadAttention", "Conv1D of GPT-2"])
def test_linear_layers_are_one_product_per_row(name: str) -> None:
    """Fails if weights are copied for every sample or token, which `vmap` does for inputs that are not contiguous."""
    weight = torch.randn(ROWS, 12, 4, dtype=torch.float64)
    x = torch.randn(ROWS, 5, 7, 4, dtype=torch.float64)

    class Products(TorchDispatchMode):
        shapes: list[tuple[int, ...]] = []  # noqa: RUF012

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default):
                self.shapes.append(tuple(args[-2].shape))
            return function(*args, **(kwargs or {}))

    def layer(x: Tensor, w: Tensor, word: Tensor) -> Tensor:
        with RowFunctions(word, batched=True):
            if name == "MultiheadAttention":  # which exchanges samples and tokens
                return F.linear(x.transpose(0, 1), w, w[:, 0]).transpose(0, 1)
            return torch.addmm(w[:, 0], x.reshape(-1, 4), w.t()).view(5, 7, 12)

    with Products() as products:
        found = torch.vmap(layer)(x, weight, NOISE)
    assert products.shapes == [(ROWS, 35, 4)]
    torch.testing.assert_close(found, torch.einsum("rbti,roi->rbto", x, weight) + weight[:, None, None, :, 0])


@pytest.mark.parametrize("name", ["linear", "multi-head attention", "LSTM", "convolution 2d"])
def test_equal_rows_in_the_same_memory_have_gradients_of_their_own(name: str) -> None:
    """After a mean over clients, the rows are one row expanded; fails if its gradient is given to the first of them."""
    rows, (x, *rest), buffers = case_of(name)
    x = x[:1].expand(ROWS, -1)
    found = {}
    for backend in ("loop", "vmap"):
        rows.backend = backend
        found[backend] = rows.gradients(x, *rest, buffers, train=True, noise=NOISE)
    torch.testing.assert_close(found["vmap"], found["loop"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_that_are_not_aligned_are_copied(transposed: bool) -> None:
    """Products on a GPU read those of a slice of a row number by number."""

    def matrices(first: int, d: int) -> Tensor:
        w = torch.randn(3, d)[:, first : first + 32].view(3, 4, 8)
        return w.transpose(1, 2) if transposed else w

    aligned = matrices(4, 40)
    assert _aligned_weights(aligned) is aligned
    for w in (matrices(3, 40), matrices(4, 41)):
        copied = _aligned_weights(w)
        assert torch.equal(copied, w)
        assert copied.storage_offset() == 0
        assert copied.stride() == ((32, 1, 8) if transposed else (32, 8, 1))
    odd = torch.randn(3, 41)[:, 1:31].view(3, 5, 6)
    assert _aligned_weights(odd) is odd, "copying would not align its rows"
