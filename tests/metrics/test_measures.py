"""The paper's measures, compared with its definitions written in plain NumPy."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, Ridge
from torch import Tensor, nn

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.metrics import (
    CHEAP,
    COLUMNS,
    COSTLY,
    Evaluations,
    History,
    MetricSettings,
    as_records,
    cheap,
    costly,
    measures,
    proximal_gradient_mapping,
)
from depositum.problem import Oracle, Problem, Trial, as_loss, from_client_data
from depositum.regularizers import L1, MCP, SCAD, Box, L1Ball, L2Ball, Nonnegative, Simplex, SquaredL2, Zero

SIZES, FEATURES, CLASSES = (7, 4, 9, 6), 5, 3
N, n = sum(SIZES), len(SIZES)


class FullState(NamedTuple):
    t: Tensor
    x: Tensor
    y: Tensor
    nu: Tensor


class BareState(NamedTuple):
    t: Tensor
    x: Tensor


def softmax_problem(seeds=(0, 1), weighting="uniform", test=True, **settings):
    """Multinomial logistic regression without bias, whose f_i is simple; each trial has its own partition."""
    rng = np.random.default_rng(0)
    data = Samples(torch.tensor(rng.standard_normal((N, FEATURES))), torch.tensor(rng.integers(0, CLASSES, N)))
    unseen = Samples(torch.tensor(rng.standard_normal((11, FEATURES))), torch.tensor(rng.integers(0, CLASSES, 11)))
    model = nn.Linear(FEATURES, CLASSES, bias=False)
    trials = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(N)
        start = torch.zeros(FEATURES * CLASSES, dtype=torch.float64)
        trials.append(Trial(seed, start, np.split(order, np.cumsum(SIZES)[:-1])))
    loss = as_loss("cross-entropy")
    return Problem(model, loss, data, tuple(trials), test=unseen if test else None, weighting=weighting, **settings)


def random_state(problem, seed=5, zeros=True):
    rng = np.random.default_rng(seed)
    shape = (len(problem.trials) * problem.n, problem.layout.size)
    x = rng.standard_normal(shape)
    if zeros:
        x[rng.random(shape) < 0.3] = 0.0
    y, nu = rng.standard_normal(shape), rng.standard_normal(shape)
    return FullState(torch.tensor(3), torch.tensor(x), torch.tensor(y), torch.tensor(nu))


class Reference:
    """The problem in NumPy: losses, gradients and prox, one sample at a time."""

    def __init__(self, problem, trial):
        self.problem, self.parts = problem, problem.trials[trial].parts
        self.inputs, self.targets = problem.train.inputs.numpy(), problem.train.targets.numpy()

    def share(self, i):
        return n * len(self.parts[i]) / N if self.problem.weighting == "samples" else 1.0

    def loss(self, x, a, label):
        logits = x.reshape(CLASSES, FEATURES) @ a
        return np.log(np.exp(logits).sum()) - logits[label]

    def gradient(self, x, a, label):
        logits = x.reshape(CLASSES, FEATURES) @ a
        p = np.exp(logits) / np.exp(logits).sum()
        return np.outer(p - np.eye(CLASSES)[label], a).ravel()

    def f_i(self, i, x):
        return self.share(i) * np.mean([self.loss(x, self.inputs[k], self.targets[k]) for k in self.parts[i]])

    def grad_f_i(self, i, x):
        own = [self.gradient(x, self.inputs[k], self.targets[k]) for k in self.parts[i]]
        return self.share(i) * np.mean(own, axis=0)

    def f(self, x):
        return np.mean([self.f_i(i, x) for i in range(n)])

    def grad_f(self, x):
        return np.mean([self.grad_f_i(i, x) for i in range(n)], axis=0)

    def mapping(self, x, alpha):
        """G^α(x) of Definition 2 for h = ‖·‖₁."""
        z = x - alpha * self.grad_f(x)
        p = np.sign(z) * np.maximum(np.abs(z) - alpha * self.problem.beta, 0)
        return (x - p) / alpha

    def accuracy(self, x):
        test = self.problem.test
        scores = test.inputs.numpy() @ x.reshape(CLASSES, FEATURES).T
        return np.mean(scores.argmax(1) == test.targets.numpy())


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_every_measure_equals_its_definition(weighting):
    """Definitions 2 and 3, condition (2), consensus, loss, φ, sparsity and accuracies, for two trials."""
    problem = softmax_problem(weighting=weighting, regularizer=L1(), beta=0.1)
    oracle, state = Oracle(problem, dtype=torch.float64), random_state(problem)
    alpha, smooth = 0.3, 2.5
    values = {**cheap(state, oracle), **costly(state, oracle, alpha, smooth)}
    assert set(values) == {*CHEAP, *COSTLY}
    assert all(value.shape == (2,) for value in values.values())
    for trial in range(2):
        reference = Reference(problem, trial)
        x, y, nu = (z.numpy()[trial * n : (trial + 1) * n] for z in (state.x, state.y, state.nu))
        mean = x.mean(0)
        G = np.concatenate([reference.mapping(x[i], alpha) for i in range(n)])
        error = np.mean([reference.grad_f_i(i, x[i]) for i in range(n)], axis=0) - nu.mean(0)
        J = np.kron(np.full((n, n), 1 / n), np.eye(x.shape[1]))
        spread = J @ x.ravel() - x.ravel()
        test = problem.test
        unseen = [
            reference.loss(mean, a, label) for a, label in zip(test.inputs.numpy(), test.targets.numpy(), strict=True)
        ]
        accuracies = [reference.accuracy(x[i]) for i in range(n)]
        expected = {
            "train_loss": reference.f(mean),
            "phi": reference.f(mean) + 0.1 * np.abs(mean).sum(),
            "test_loss": np.mean(unseen),
            "test_accuracy": reference.accuracy(mean),
            "consensus_x": spread @ spread / n,
            "consensus_y": np.sum((y - y.mean(0)) ** 2) / n,
            "sparsity": np.mean(x == 0),
            "stationarity": G @ G,
            "gradient_error": error @ error,
            "s": G @ G + smooth**2 * (spread @ spread) + n * (error @ error),
            "client_accuracy_mean": np.mean(accuracies),
            "client_accuracy_worst": np.min(accuracies),
            "zeta2": np.mean([np.sum((reference.grad_f_i(i, mean) - reference.grad_f(mean)) ** 2) for i in range(n)]),
        }
        for name, value in expected.items():
            assert values[name][trial].item() == pytest.approx(value, rel=1e-11), name


def test_the_measures_of_a_trial_do_not_depend_on_the_others():
    """Three trials at once or each alone: the same numbers up to the order of summation."""
    problem = softmax_problem(seeds=(4, 0, 9), regularizer=L1(), beta=0.1)
    state = random_state(problem)
    oracle = Oracle(problem, dtype=torch.float64)
    at_once = {**cheap(state, oracle), **costly(state, oracle, 0.3, 1.0)}
    for k, seed in enumerate(problem.seeds):
        rows = slice(k * n, (k + 1) * n)
        alone = Oracle(problem.restricted_to([seed]), dtype=torch.float64)
        own = FullState(state.t, state.x[rows], state.y[rows], state.nu[rows])
        for name, value in {**cheap(own, alone), **costly(own, alone, 0.3, 1.0)}.items():
            assert value.item() == pytest.approx(at_once[name][k].item(), rel=1e-13), name


def test_measures_that_a_state_or_problem_does_not_define_are_left_out():
    """Without y, ν, test data, α or L, the columns that need them are missing."""
    problem = softmax_problem(test=False)
    oracle, full = Oracle(problem, dtype=torch.float64), random_state(problem)
    bare = BareState(full.t, full.x)
    assert set(cheap(bare, oracle)) == {"train_loss", "phi", "consensus_x", "sparsity"}
    assert set(costly(bare, oracle, None, 1.0)) == {"zeta2"}
    assert set(costly(bare, oracle, 0.1, 1.0)) == {"stationarity", "zeta2"}
    assert set(costly(full, oracle, 0.1, None)) == {"stationarity", "gradient_error", "zeta2"}


def test_phi_without_a_regularizer_is_the_loss():
    problem = softmax_problem(regularizer=MCP(), beta=0.0)
    values = cheap(random_state(problem), Oracle(problem, dtype=torch.float64))
    assert torch.equal(values["phi"], values["train_loss"])


# Stationary points of independent solvers


def regression(seed=0, samples=60, features=8):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((samples, features))
    targets = inputs @ (rng.standard_normal(features) * (rng.random(features) < 0.5)) + 0.1 * rng.standard_normal(
        samples
    )
    return inputs, targets


def regression_problem(inputs, targets, regularizer, beta):
    """(1/2N) ‖Ax − b‖² + βh(x), on four clients of equal size."""
    start = torch.zeros(inputs.shape[1], dtype=torch.float64)
    trial = Trial(0, start, np.split(np.arange(len(targets)), 4))
    data = Samples(torch.tensor(inputs), torch.tensor(targets))
    model = nn.Linear(inputs.shape[1], 1, bias=False)
    return Problem(model, as_loss("mse"), data, (trial,), regularizer=regularizer, beta=beta)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("kind", ["lasso", "ridge"])
def test_the_mapping_is_zero_at_a_solution_and_only_there(kind, alpha):
    """G^α(x*) = 0 for every α at scikit-learn's solution (Lasso scales the loss as here, Ridge by N)."""
    inputs, targets = regression()
    beta = 0.1
    if kind == "lasso":
        solver, regularizer = Lasso(alpha=beta, fit_intercept=False, tol=1e-14, max_iter=100_000), L1()
    else:
        solver, regularizer = Ridge(alpha=beta * len(targets), fit_intercept=False, tol=1e-14), SquaredL2()
    solution = torch.tensor(solver.fit(inputs, targets).coef_)
    problem = regression_problem(inputs, targets, regularizer, beta)
    oracle = Oracle(problem, dtype=torch.float64)
    x = solution.expand(4, -1)
    at = costly(BareState(torch.tensor(0), x), oracle, alpha, None)["stationarity"]
    assert at.item() < 1e-20
    assert kind == "ridge" or 0 < (x == 0).double().mean().item() < 1
    off = x + torch.tensor([1e-3, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    assert costly(BareState(torch.tensor(0), off), oracle, alpha, None)["stationarity"].item() > 1e-9


@pytest.mark.parametrize("regularizer", [MCP(lam=0.2, theta=3.0), SCAD(lam=0.2, a=3.7), L1(), Zero()])
def test_proximal_gradient_descent_ends_where_the_mapping_is_zero(regularizer):
    """Also for nonconvex h: fixed points of x ← prox{x − α∇f(x)} are zeros of G^α, for every other α too."""
    inputs, targets = regression()
    problem = regression_problem(inputs, targets, regularizer, 0.5)
    oracle = Oracle(problem, dtype=torch.float64)
    x = oracle.start()
    for _ in range(300):
        x = oracle.prox(x - 0.3 * oracle.global_grad(x), 0.3)
    for alpha in (0.3, 0.1):
        mapping = proximal_gradient_mapping(x, oracle.global_grad(x), oracle, alpha)
        assert mapping.abs().max() < 1e-12


def test_the_mapping_without_h_is_the_gradient():
    oracle = Oracle(softmax_problem(), dtype=torch.float64)
    x, direction = random_state(oracle.problem).x, torch.randn(2 * n, 15, dtype=torch.float64)
    torch.testing.assert_close(proximal_gradient_mapping(x, direction, oracle, 0.7), direction, rtol=1e-12, atol=1e-12)


# Single measures


def test_sparsity_counts_exact_zeros():
    """In every client's own model; −0 is a zero and 1e-300 is not."""
    x = torch.tensor([[0.0, -0.0, 1.0, 1e-300], [0.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0], [0.0] * 4]).double()
    x[0, 3] = 1e-300
    oracle = Oracle(from_client_data(nn.Linear(4, 1, bias=False), [(torch.ones(1, 4), torch.ones(1, 1))] * 2, seed=0))
    two = replace(oracle.problem, trials=tuple(replace(oracle.problem.trials[0], seed=s) for s in (0, 1)))
    measured = cheap(BareState(torch.tensor(0), x), Oracle(two, dtype=torch.float64))
    assert measured["sparsity"].tolist() == [3 / 8, 4 / 8]


@pytest.mark.parametrize(
    "regularizer", [Box(low=-0.1, high=0.1), Nonnegative(), L2Ball(radius=1.0), L1Ball(radius=1.0), Simplex()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_phi_is_finite_at_averages_of_feasible_models(regularizer, dtype):
    """Averages of points of a convex set leave it by rounding only, for which φ is not infinite."""
    problem = softmax_problem(regularizer=regularizer, beta=1.0)
    oracle = Oracle(problem, dtype=dtype)
    x = oracle.prox(random_state(problem, zeros=False).x.to(dtype), 0.1)
    W = torch.full((n, n), 1 / n, dtype=dtype) * 0.9 + 0.1 * torch.eye(n, dtype=dtype)
    for _ in range(50):
        x = (W @ x.view(2, n, -1)).view_as(x)
    values = cheap(BareState(torch.tensor(0), x), oracle)
    assert torch.isfinite(values["phi"]).all()
    assert torch.equal(values["phi"], values["train_loss"])
    outside = cheap(BareState(torch.tensor(0), x - 2.0), oracle)
    assert torch.isinf(outside["phi"]).all()


def test_sums_are_computed_in_float64():
    """Also sums of float32 squares: a million of them, summed in float32, are wrong in the seventh digit."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, 300_000, generator=generator) * torch.logspace(-3, 3, 300_000)
    squares = (z - z.mean(0)).square().double().numpy()
    assert measures.consensus(z, 1).item() == pytest.approx(squares.sum() / 4, rel=1e-13)
    assert measures.squared_norm(measures.by_trial(z, 2)).tolist() == pytest.approx(
        [part.square().double().sum().item() for part in z.view(2, 2, -1)], rel=1e-13
    )


def test_records_are_one_dictionary_per_trial():
    values = {"train_loss": torch.tensor([1.0, 2.0]), "sparsity": torch.tensor([0.5, 0.25], dtype=torch.float64)}
    assert as_records(values, 2) == [{"train_loss": 1.0, "sparsity": 0.5}, {"train_loss": 2.0, "sparsity": 0.25}]
    assert as_records({}, 2) == [{}, {}]


# The history


def test_running_means_are_per_seed_and_over_evaluated_iterations():
    """(1/|E_t|) Σ_{k ∈ E_t}: iterations without the measure and other seeds do not count."""
    history = History()
    rng = np.random.default_rng(0)
    errors, mappings = rng.random((2, 10)), rng.random((2, 10))
    for t in range(10):
        for seed in (3, 8):
            k = (seed == 8) * 1
            measured = {"gradient_error": errors[k, t], "stationarity": mappings[k, t]} if t % 3 == 0 else {}
            history.add({"seed": seed, "iteration": t, **measured})
    frame = history.frame
    assert list(frame.columns) == list(COLUMNS)
    for k, seed in enumerate((3, 8)):
        own = frame[frame.seed == seed].set_index("iteration")
        for t in range(0, 10, 3):
            assert own.gradient_error_mean[t] == pytest.approx(errors[k, : t + 1 : 3].mean(), rel=1e-14)
            assert own.stationarity_mean[t] == pytest.approx(mappings[k, : t + 1 : 3].mean(), rel=1e-14)
        assert own.gradient_error_mean.isna().tolist() == [t % 3 != 0 for t in range(10)]


def test_a_resumed_history_has_the_means_of_an_uninterrupted_one():
    """Resumed from all of its records, or from some of them."""
    values = [0.3, 0.1, 0.7, 0.2]
    records = [{"seed": 0, "iteration": t, "gradient_error": v} for t, v in enumerate(values)]
    uninterrupted = History(records)
    resumed = History(uninterrupted.records[:2])
    for entry in records[2:]:
        resumed.add(entry)
    assert resumed.records == uninterrupted.records
    assert uninterrupted.last(0)["gradient_error_mean"] == pytest.approx(np.mean(values))
    assert uninterrupted.last(1) is None
    assert records[0] == {"seed": 0, "iteration": 0, "gradient_error": 0.3}  # the argument is unchanged


@pytest.mark.parametrize(
    ("every", "last", "evaluated"),
    [(0, True, []), (3, False, [0, 3, 6]), (3, True, [0, 3, 6, 7]), (1, False, range(8))],
)
def test_costly_measures_are_due_at_multiples_of_costly_every(every, last, evaluated):
    """And at the last iteration; 0 is never."""
    settings = MetricSettings(costly_every=every)
    assert [t for t in range(8) if settings.costly_at(t, last and t == 7, Evaluations())] == list(evaluated)


@pytest.mark.parametrize(
    ("every", "evaluated"), [(None, range(8)), (0, []), (3, [0, 3, 6, 7]), (1, range(8))], ids=["unset", "0", "3", "1"]
)
def test_the_training_loss_is_due_at_multiples_of_train_every(every, evaluated):
    """Without `train_every` at every evaluation; 0 is never."""
    settings = MetricSettings(train_every=every)
    assert [t for t in range(8) if settings.train_at(t, t == 7, Evaluations())] == list(evaluated)


@pytest.mark.parametrize(
    ("every", "start", "evaluated"),
    [(3, 0, [0, 3, 6]), (3, 1, [0, 1, 4, 7]), (3, 2, [0, 2, 5, 8]), (1, 0, range(9)), (20, 7, [0, 7])],
)
def test_evaluations_are_due_at_zero_and_at_multiples_after_the_first(every, start, evaluated):
    """`left` is the number of iterations to the next evaluation: with a larger one, the loop would miss it."""
    evaluations = Evaluations(every, start)
    assert [t for t in range(9) if evaluations.due(t)] == list(evaluated)
    for t in range(9):
        assert evaluations.left(t) == next(k for k in range(1, every + 1) if evaluations.due(t + k))


def test_measures_count_from_the_first_evaluation():
    """Multiples counted from t = 0 would coincide with shifted evaluations only at the first and the last."""
    settings, evaluations = MetricSettings(costly_every=4, train_every=6), Evaluations(2, 1)
    assert [t for t in range(15) if settings.costly_at(t, False, evaluations)] == [0, 1, 5, 9, 13]
    assert [t for t in range(15) if settings.train_at(t, t == 14, evaluations)] == [0, 1, 7, 13, 14]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"train_every": -1}, "^train_every: "),
        ({"costly_every": -1}, "^costly_every: "),
        ({"alpha": 0.0}, "^alpha: "),
        ({"alpha": float("nan")}, "^alpha: "),
        ({"smoothness": -1.0}, "^smoothness: "),
        ({"smoothness": "mesure"}, "^smoothness: 'mesure' given; it must be a number > 0 or 'measure'$"),
        ({"alpha": "measure"}, "^alpha: 'measure' given; it must be a number > 0$"),
        ({"costly_every": 2.5}, "^costly_every: 2.5 given; it must be a whole number"),
        ({"train_every": "never"}, "^train_every: 'never' given; it must be a whole number"),
    ],
)
def test_invalid_metric_settings_are_rejected(settings, key):
    with pytest.raises(ConfigError, match=key):
        MetricSettings(**settings)


@pytest.mark.parametrize("key", ["costly_every", "train_every"])
def test_strides_must_be_multiples_of_evaluate_every(key):
    """Measures are computed at evaluations only: with 7, they would silently be at 70, 140, … of every 10."""
    message = f"^{key}: 7 given; it must be a multiple of evaluate_every = 10"
    with pytest.raises(ConfigError, match=message):
        MetricSettings(**{key: 7}).check(Evaluations(10))
    for every in (0, 10, 70):
        MetricSettings(**{key: every}).check(Evaluations(10))
