"""Tuning on real problems: a quadratic whose stable stepsizes are known, other hyper-parameters, every method."""

import math

import pytest
import torch

import depositum as dp
from depositum.algorithms import ALGORITHMS
from depositum.errors import ConfigError, DepositumError
from depositum.runs import ResolvedConfig, from_table
from depositum.tuning import tune
from depositum.tuning.candidate_runs import CandidateRuns
from depositum.tuning.tuner import tuning_seeds
from tests.support.small_fits import client_pairs
from tests.support.small_runs import SMALL

QUICK = {"steps": 16, "progress": False, "device": "cpu"}


def spec(name: str = "depositum", beta: float = 0.0, **settings: object) -> ResolvedConfig:
    run = {"steps": 16, "device": "cpu", "batch_size": 8, "period": 1, "seeds": [0]}
    table = {
        "problem": {**SMALL["problem"], "beta": beta},
        "algorithm": {"name": name, **settings},
        "run": run,
    }
    return from_table(table)


def test_the_stable_stepsizes_of_a_quadratic_are_found() -> None:
    """Gradient descent on a quadratic with constant L diverges from 2/L on: the choice is below it by the margin."""
    generator = torch.Generator().manual_seed(0)
    # Each row of ±√L, so that every subset has the same curvature L = 4, without a bias.
    signs = torch.randint(0, 2, (3, 80, 1), generator=generator) * 2.0 - 1.0
    x = 2.0 * signs
    clients = [(part, 3.0 * part + 0.1 * torch.randn(80, 1, generator=generator)) for part in x]
    model = torch.nn.Linear(1, 1, bias=False)
    found = dp.tune(model, clients, algorithm="fedavg", batch_size="full", loss="mse", **{**QUICK, "steps": 64})
    alpha = found.best["alpha"]
    assert alpha * 1.25 < 2 / 4
    assert found.margin is not None
    assert alpha * found.margin >= 2 / 4
    assert alpha * found.stable_up_to < 2 / 4
    # At 1/L one step reaches the minimum.
    assert found.table.loc[found.table["chosen"], "objective"].item() == pytest.approx(
        found.table["objective"].min(), rel=0.01
    )


def test_the_test_data_do_not_influence_the_choice() -> None:
    clients = client_pairs()
    model = torch.nn.Linear(5, 3)
    plain = dp.tune(model, clients, **QUICK)
    with_test = dp.tune(model, clients, test=(torch.full((4, 5), 1e3), torch.zeros(4, dtype=torch.int64)), **QUICK)
    assert plain.best == with_test.best


def test_candidates_are_rows_of_one_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven stepsizes with two seeds of four clients are 56 rows; one run after another would be slower."""
    rows = []
    run_at_once = CandidateRuns._run_at_once

    def record(self: CandidateRuns, group: list[object], until: int) -> None:
        rows.append(len(group) * len(self.problem.trials) * self.problem.n)
        run_at_once(self, group, until)  # type: ignore[arg-type]

    monkeypatch.setattr(CandidateRuns, "_run_at_once", record)
    tune(spec(), seeds=2)
    assert rows[0] == 7 * 2 * 4


def test_survivors_continue_as_if_they_had_not_stopped() -> None:
    """The last outcome of a stepsize that was halved four times equals that of one uninterrupted run."""
    chosen = tune(spec(), seeds=2)
    alpha = chosen.best["algorithm.alpha"]
    again = tune(spec(), {"alpha": [alpha]}, seeds=2)
    one, other = (result.table[result.table["chosen"]].iloc[0] for result in (chosen, again))
    assert other["held_out"] == pytest.approx(one["held_out"], rel=1e-4)
    assert other["objective"] == pytest.approx(one["objective"], rel=1e-4)


def test_other_hyperparameters_are_varied_with_a_stepsize_of_their_own() -> None:
    found = tune(spec(alpha="auto"), {"gamma": [0.0, 0.9], "algorithm.momentum": ["polyak"]}, seeds=2)
    assert {*found.best} == {"algorithm.gamma", "algorithm.momentum", "algorithm.alpha"}
    selected = found.table[found.table["selected"]]
    assert sorted(selected["algorithm.gamma"]) == [0.0, 0.9]
    assert found.algorithm.gamma == found.best["algorithm.gamma"]
    assert found.algorithm.alpha == found.best["algorithm.alpha"]


def test_of_several_beta_the_sparsest_within_one_deviation_is_chosen() -> None:
    """The lowest held-out loss alone would always prefer β = 0; β = 100 removes everything."""
    found = tune(spec(beta=1e-3), {"beta": [0.0, 0.02, 100.0], "alpha": [0.3]}, seeds=3)
    table = found.table.set_index("problem.beta")
    best = table["held_out"].min()
    limit = best + table.loc[table["held_out"].idxmin(), "deviation"]
    tied = table[table["held_out"] <= limit]
    assert table.loc[found.best["problem.beta"], "sparsity"] == tied["sparsity"].max()
    assert table.loc[100.0, "sparsity"] == 1
    assert found.best["problem.beta"] < 100


def test_periods_and_batch_sizes_can_be_varied() -> None:
    found = tune(spec(), {"period": [1, 4], "batch_size": [4, "full"]}, seeds=2)
    assert {*found.best} == {"run.period", "run.batch_size"}
    assert len(found.table) == 4
    assert found.margin is None


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_accepts_auto_for_its_stepsize_and_for_nothing_else(name: str) -> None:
    method = ALGORITHMS[name]
    key = method.stepsize_key
    made = dp.algorithm(name, **{key: "auto"})
    assert made.automatic
    assert not dp.algorithm(name).automatic
    for other in ALGORITHMS.parameters(name):
        if other != key:
            with pytest.raises(ConfigError) as error:
                dp.algorithm(name, **{other: "auto"})
            assert other in str(error.value)
            assert len(str(error.value)) <= 300


@pytest.mark.parametrize("name", ["prox-dasa", "sppdm", "fast-fedda", "feddr", "gut"])
def test_stepsizes_of_other_names_are_searched_for(name: str) -> None:
    """SPPDM's s and Fast-FedDA's G are inverse stepsizes: the search must go the other way."""
    found = tune(spec(name), seeds=2)
    key = f"algorithm.{ALGORITHMS[name].stepsize_key}"
    assert list(found.best) == [key]
    unstable = found.table[found.table["diverged"] > 0][key]
    smaller = ALGORITHMS[name].stepsize_inverse
    assert all((value < found.best[key]) is smaller for value in unstable)


def test_candidates_that_the_problem_does_not_allow_are_left_out_and_reported() -> None:
    """MCP with β = 1 and θ = 5 has ρ = 0.2: stepsizes from 5 on have no single-valued prox."""
    table = {"problem": {**SMALL["problem"], "regularizer": {"mcp": {"lam": 1e-3, "theta": 5.0}}, "beta": 1.0}}
    found = tune(from_table({**table, "run": {"steps": 8, "device": "cpu"}}), seeds=2)
    assert found.best["algorithm.alpha"] * 0.2 < 1
    assert any("left out" in line and "βρ" in line for line in found.summary)


def test_if_everything_diverges_the_error_says_so() -> None:
    with pytest.raises(
        ConfigError, match=r"every value diverges, or ends worse than it began, in one of 2 seeds"
    ) as error:
        tune(spec(), {"alpha": [1e38, 2e38]}, seeds=2)
    assert len(str(error.value)) <= 300


def test_a_method_that_was_not_tuned_does_not_run() -> None:
    """Code that forgets to search must not train with a placeholder."""
    from depositum.runs import execute

    with pytest.raises(ConfigError, match="algorithm.alpha: 'auto' given, but a number is needed here"):
        execute(spec(alpha="auto"), None)


def test_seeds_are_those_of_the_run_and_then_others() -> None:
    assert tuning_seeds([5, 6], 3) == [5, 6, 97]
    assert tuning_seeds([97], 2) == [97, 98]
    assert len({*tuning_seeds([0], 40)}) == 40


def test_the_cost_is_in_runs() -> None:
    """Iterations of every candidate and seed, divided by those of the run with its seeds."""
    found = tune(spec(), {"alpha": [0.1, 0.2]}, seeds=3)
    assert found.cost == pytest.approx(2 * 3)


def test_the_figure_is_written(tmp_path: object) -> None:
    found = tune(spec(), {"gamma": [0.0, 0.5], "alpha": "auto"}, seeds=2)
    found.figure(tmp_path / "tuning.png")  # type: ignore[operator]
    assert (tmp_path / "tuning.png").stat().st_size > 1000  # type: ignore[operator]


#: Arguments of `tune` that are wrong, and what the error must say.
WRONG = [
    ({"over": {"alhpa": [1.0]}}, "over: 'alhpa' cannot be varied.*did you mean 'alpha'"),
    ({"over": {"gamma": "auto"}}, "gamma: 'auto' given, but only the stepsize, alpha, is searched for"),
    ({"over": {"gamma": [2.0]}}, "gamma: 2.0 given; it must lie in"),
    ({"over": {"gamma": 0.5}}, "gamma: 0.5 given; it must be a list of values"),
    ({"over": {"gamma": []}}, "gamma: .* given; it must be a list of values"),
    ({"over": {"gamma": [[1]]}}, "gamma: .*must be numbers or names"),
    ({"over": {"batch_size": [-1]}}, "batch_size: -1 given; it must be a whole number ≥ 1"),
    ({"over": {"alpha": ["auto", 0.1]}}, "alpha: 'auto' given, but a number is needed here"),
    ({"over": {3: [1]}}, "over: 3 cannot be varied"),
    ({"over": 3}, "over: 3 given; it must be a table"),
    ({"over": {}}, "over: nothing given"),
    ({"holdout": 1.5}, "holdout: 1.5 given; it must be a number between 0 and 1"),
    ({"holdout": "x"}, "holdout: 'x' given"),
    ({"seeds_per_candidate": 0}, "seeds_per_candidate: 0 given; it must be a whole number from 1 to 1000"),
    ({"steps": 0}, "steps: 0 given"),
    ({"stpes": 3}, "stpes: is not an argument of tune.*did you mean 'steps'"),
    ({"callbacks": []}, "callbacks: is not an argument of tune; it concerns the run alone"),
    ({"algorithm": {"depositum": {"alpha": {"cosine": {"start": "auto", "steps": 5}}}}}, "start: 'auto' given"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_arguments_are_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DepositumError, match=message) as error:
        dp.tune(torch.nn.Linear(5, 3), client_pairs(), **{**QUICK, **arguments})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300


def test_a_diverging_seed_disqualifies_a_stepsize_in_practice() -> None:
    """Of three seeds one is unstable at the larger stepsizes: none of those is chosen."""
    found = dp.tune(torch.nn.Linear(5, 3), client_pairs(), **QUICK)
    chosen = found.table[found.table["chosen"]].iloc[0]
    assert chosen["diverged"] == 0
    assert chosen["stable"]
    assert math.isfinite(chosen["held_out"])
