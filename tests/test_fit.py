"""`depositum.fit`: the user's model and data in one call."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

import depositum as dp
from depositum.metrics import COLUMNS
from tests.support.small_fits import client_pairs, small_fit


def same_state(a, b):
    return all(torch.equal(a.state[k], b.state[k]) for k in a.state)


def test_one_call_trains_a_model():
    """The call in the README: the accuracy is far above chance and equals the recorded one."""
    clients, test = client_pairs(clients=6), client_pairs(clients=1, size=300)[0]
    torch.manual_seed(0)
    result = dp.fit(
        nn.Linear(5, 3),
        clients,
        network=dp.ring(6),
        regularizer=dp.MCP(lam=1.0, theta=5.0),
        beta=1e-3,
        algorithm=dp.Depositum(alpha=0.3, gamma=0.5),
        period=5,
        batch_size=16,
        steps=200,
        test=test,
        progress=False,
    )
    with torch.no_grad():
        accuracy = (result.model(test[0]).argmax(1) == test[1]).double().mean().item()
    assert accuracy > 0.85
    last = result.history.iloc[-1]
    assert last.test_accuracy == pytest.approx(accuracy, abs=1e-12)
    assert last.train_loss < 0.5 * result.history.iloc[0].train_loss
    assert result.diverged is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_result_has_the_documented_shapes(dtype):
    """Model, history, consensus and state."""
    result = small_fit(dtype=dtype)
    kind = getattr(torch, dtype)
    assert set(result.state) == {"x", "y", "nu"}
    assert all(z.shape == (4, 18) and z.dtype == kind for z in result.state.values())
    assert isinstance(result.history, pd.DataFrame)
    assert list(result.history.columns) == list(COLUMNS)
    assert result.history.iteration.tolist() == [0, 4, 8, 12]
    assert result.history.test_loss.isna().all()
    assert result.consensus.index.tolist() == list(range(1, 13))
    assert result.consensus[12] == pytest.approx(result.history.consensus_x.iloc[-1])
    mean = result.state["x"].mean(0)
    assert torch.equal(torch.cat([p.detach().flatten() for p in result.model.parameters()]), mean)
    assert {p.dtype for p in result.model.parameters()} == {kind}
    assert type(result.model) is nn.Linear


def test_nesterov_momentum_has_one_more_variable():
    assert set(small_fit(algorithm=dp.Depositum(momentum="nesterov")).state) == {"x", "y", "nu", "mu"}


def test_the_given_model_is_the_start_and_is_not_changed():
    """Its parameters, buffers, mode and gradients; all tensors of the trained copy differ, those of batch norm too."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
    before = copy.deepcopy(model.state_dict())
    result = small_fit(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not result.model.training
    assert not result.client_model(0).training
    for name, tensor in result.model.state_dict().items():
        assert not torch.equal(tensor, before[name])


def test_zero_steps_return_the_start():
    model = nn.Linear(5, 3)
    result = small_fit(model, steps=0)
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-6, atol=0)
    assert result.history.iteration.tolist() == [0]
    assert len(result.consensus) == 0
    assert torch.equal(result.state["x"], result.state["x"][:1].expand(4, -1))


def test_the_seed_alone_determines_the_run():
    """Two calls give the same bits whatever the state of torch's generator; another seed gives another run."""
    one = small_fit(seed=3)
    torch.rand(7)
    assert same_state(one, small_fit(seed=3))
    assert not same_state(one, small_fit(seed=4))
    pd.testing.assert_frame_equal(
        one.history.drop(columns="seconds"), small_fit(seed=3).history.drop(columns="seconds"), check_exact=True
    )


def test_arrays_tensors_and_lists_give_the_same_run():
    """With labels of 32 or 64 bits, in tuples or lists of two."""
    clients = client_pairs()
    arrays = [(x.numpy(), y.numpy().astype(np.int32)) for x, y in clients]
    lists = [[x.tolist(), y.tolist()] for x, y in clients]
    expected = small_fit(clients=clients)
    assert same_state(expected, small_fit(clients=arrays))
    assert same_state(expected, small_fit(clients=lists))


def test_the_given_data_are_not_changed():
    clients = client_pairs()
    before = copy.deepcopy(clients)
    small_fit(clients=clients)
    for (x, y), (old_x, old_y) in zip(clients, before, strict=True):
        assert torch.equal(x, old_x)
        assert torch.equal(y, old_y)


def test_callbacks_are_called_in_order():
    """Start, every step, evaluations with their records, and the end."""

    class Recorder(dp.Callback):
        def __init__(self):
            self.entries = []

        def on_start(self, loop):
            self.entries.append("start")

        def on_step(self, loop):
            self.entries.append(loop.t)

        def on_evaluation(self, loop, records):
            self.entries.append(("evaluated", records[0]["iteration"]))

        def on_end(self, loop):
            self.entries.append("end")

    recorder = Recorder()
    small_fit(steps=3, evaluate_every=2, callbacks=[recorder])
    assert recorder.entries == ["start", ("evaluated", 0), 1, 2, ("evaluated", 2), 3, ("evaluated", 3), "end"]


def test_evaluate_from_shifts_evaluations():
    """Fails if evaluations are at multiples of `evaluate_every` regardless of the first."""
    result = small_fit(evaluate_from=1, metrics=dp.MetricSettings(costly_every=8))
    assert result.history.iteration.tolist() == [0, 1, 5, 9, 12]
    assert result.history.stationarity.notna().tolist() == [True, True, False, True, True]
    assert result.consensus.index.tolist() == list(range(1, 13))


def test_costly_measures_are_recorded_on_request():
    """At multiples of `costly_every`; s only where L is given."""
    result = small_fit(
        regularizer=dp.L1(),
        beta=1e-3,
        metrics=dp.MetricSettings(costly_every=8, smoothness=1.0),
        test=client_pairs()[0],
    )
    assert result.history.stationarity.notna().tolist() == [True, False, True, True]
    for column in ("gradient_error", "s", "zeta2", "client_accuracy_mean", "client_accuracy_worst"):
        assert result.history[column].notna().tolist() == [True, False, True, True]
    last = result.history.iloc[-1]
    assert last.client_accuracy_worst <= last.client_accuracy_mean


def test_full_gradients_reach_the_solution_of_ridge_regression():
    """Every client has scikit-learn's minimiser."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4))
    y = x @ rng.standard_normal(4) + 0.1 * rng.standard_normal(60)
    clients = [(x[k : k + 15], y[k : k + 15]) for k in range(0, 60, 15)]
    beta = 0.1
    result = dp.fit(
        nn.Linear(4, 1, bias=False),
        clients,
        network=dp.complete(4),
        regularizer=dp.SquaredL2(),
        beta=beta,
        algorithm=dp.Depositum(alpha=0.3, gamma=0.3),
        batch_size="full",
        steps=400,
        evaluate_every=100,
        dtype="float64",
        progress=False,
        test=clients[0],
    )
    solution = Ridge(alpha=beta * 60, fit_intercept=False, tol=1e-12).fit(x, y).coef_
    np.testing.assert_allclose(result.state["x"].numpy(), np.tile(solution, (4, 1)), atol=1e-8)
    assert result.history.test_accuracy.isna().all()
    assert result.history.test_loss.notna().all()
    assert result.history.consensus_x.iloc[-1] < 1e-16


def test_weighting_by_samples_gives_the_mean_loss_over_all_samples():
    """One large client and one small; uniform weighting gives the mean of the clients' means."""
    clients = [client_pairs(1, 90)[0], client_pairs(1, 10, seed=1)[0]]
    model = nn.Linear(5, 3)
    pooled = small_fit(model, clients, steps=0, weighting="samples").history.train_loss[0]
    uniform = small_fit(model, clients, steps=0).history.train_loss[0]
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y, reduction="none") for x, y in clients]
    assert pooled == pytest.approx(torch.cat(losses).mean().item(), rel=1e-6)
    assert uniform == pytest.approx((losses[0].mean() + losses[1].mean()).item() / 2, rel=1e-6)
    assert abs(pooled - uniform) > 1e-3


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_clients_can_be_trained(clients):
    """One client has no neighbour, two have each other."""
    result = small_fit(clients=client_pairs(clients))
    assert result.state["x"].shape == (clients, 18)
    assert np.isfinite(result.history.train_loss).all()


def test_autocast_around_the_call_has_no_effect():
    """Otherwise even mixing would be in bf16."""
    expected = small_fit()
    with torch.autocast("cpu", torch.bfloat16):
        assert same_state(small_fit(), expected)


def test_no_grad_around_the_call_has_no_effect():
    expected = small_fit()
    with torch.no_grad():
        assert same_state(small_fit(), expected)


def test_bf16_differs_slightly_from_float32():
    expected, reduced = small_fit(), small_fit(precision="bf16")
    difference = float((expected.state["x"] - reduced.state["x"]).norm() / expected.state["x"].norm())
    assert 1e-6 < difference < 0.05
    assert reduced.state["x"].dtype == torch.float32


def diverging_fit(**settings):
    clients = [(x, x[:, :1] ** 2) for x, _ in client_pairs()]
    return small_fit(nn.Linear(5, 1), clients, algorithm=dp.Depositum(alpha=100.0), steps=60, **settings)


def check_last_finite_state(result):
    assert result.diverged is not None
    assert result.diverged.seed == 0
    assert result.finished
    assert all(torch.isfinite(z).all() for z in result.state.values())
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


def test_divergence_raises_with_the_last_finite_state():
    """Fails if a run that diverged returns as if it had trained, as it once did without a progress bar."""
    with pytest.raises(
        dp.DivergedError, match=r"^alpha = 100\.0: seed 0 diverged: .*; .* in the result; try a smaller alpha$"
    ) as error:
        diverging_fit()
    check_last_finite_state(error.value.result)


def test_divergence_can_be_a_warning():
    with pytest.warns(RuntimeWarning, match=r"^alpha = 100\.0: seed 0 diverged"):
        result = diverging_fit(on_divergence="warn")
    check_last_finite_state(result)


def test_one_seed_of_several_that_diverges_raises():
    """The others are trained to the end, and are in the result."""
    clients = [(x, x[:, :1] ** 2) for x, _ in client_pairs()]
    start = nn.Linear(5, 1)
    with pytest.raises(dp.DivergedError) as error:
        small_fit(start, clients, algorithm=dp.Depositum(alpha=100.0), steps=60, seeds=[0, 1])
    assert {*error.value.result.divergences} == {0, 1}


def test_a_loss_that_has_risen_is_a_warning():
    clients = [(x, x[:, :1] ** 2) for x, _ in client_pairs()]
    with pytest.warns(RuntimeWarning, match=r"ended worse than it began: φ rose from .*; try a smaller alpha"):
        small_fit(nn.Linear(5, 1), clients, algorithm=dp.Depositum(alpha=4.0), steps=8)


def test_nothing_is_printed_without_progress(capsys):
    small_fit()
    out, err = capsys.readouterr()
    assert out == err == ""


def test_beta_zero_switches_the_regularizer_off():
    """Without a regularizer, β = 0 is accepted and has no effect."""
    assert same_state(small_fit(regularizer=dp.L1(), beta=0.0), small_fit())
    assert same_state(small_fit(beta=0), small_fit())


def test_smoothness_can_be_measured():
    """L of a linear layer under cross-entropy is ½ λ_max(AᵀA/N_i), A with a column of ones, of the worst client."""
    worst = 0.0
    for inputs, _ in client_pairs():
        a = np.column_stack([inputs.double().numpy(), np.ones(len(inputs))])
        worst = max(worst, 0.5 * float(np.linalg.eigvalsh(a.T @ a / len(a))[-1]))
    measured, given = (
        small_fit(metrics=dp.MetricSettings(costly_every=4, smoothness=L)).history["s"] for L in ("measure", worst)
    )
    assert (measured > 0).all()
    np.testing.assert_allclose(measured, given, rtol=1e-9)


def test_a_model_that_branches_on_its_inputs_is_trained_client_by_client():
    """Branches on values cannot be batched over clients, so the backend falls back to the loop.

    Fails if batching is tested with the same samples for all rows, for which the branch is not batched.
    """

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x):
            return self.linear(x / 2 if x.abs().max() > 2 else x)

    torch.manual_seed(0)
    model = Branching()
    result = dp.fit(model, client_pairs(), steps=12, evaluate_every=4, batch_size=8, device="cpu", progress=False)
    assert result.history.train_loss.iloc[-1] < result.history.train_loss.iloc[0]
