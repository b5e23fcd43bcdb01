"""A slice of the campaign of wrong calls, and that it finds what it is for."""

import warnings

import pytest

import depositum as dp
from tests.benchmarks.test_peers import BENCHMARKS, load

wrong_calls = load(BENCHMARKS / "wrong_calls.py", "benchmark_wrong_calls")


@pytest.mark.parametrize("block", range(5))
def test_random_wrong_calls_are_refused_in_one_line_that_names_an_argument(block):
    """Fails if a call raises anything but a one-line error about an argument at fault, or writes, prints or hangs."""
    outcomes = [wrong_calls.perform_random(2026, 30 * block + index) for index in range(30)]
    wrong = [f"{outcome.call}: {outcome.violations} {outcome.message}" for outcome in outcomes if outcome.violations]
    assert not wrong, "\n".join(wrong)
    assert sum(outcome.kind == "refused" for outcome in outcomes) >= 15


def _write(folder):
    (folder / "file").write_text("left behind")
    raise dp.ConfigError("steps", "-1 given; it must be a whole number ≥ 0")


def _warn(folder):
    warnings.warn("a library's own", UserWarning, stacklevel=1)


def _raise(error):
    def run(folder):
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "violation"),
    [
        (_raise(TypeError("inside")), "raises TypeError"),
        (_raise(dp.ConfigError("seed", "0 given")), "names 'seed'"),
        (_raise(dp.DataError("no such file")), "does not begin with a name"),
        (_write, "writes"),
        (_warn, "warns: UserWarning"),
        (lambda folder: print("noise"), "prints"),
    ],
)
def test_the_campaign_finds_violations(tmp_path, run, violation):
    call = wrong_calls.Call("fit", lambda: run(tmp_path), {}, [("steps", "negative")])
    (found,) = wrong_calls.perform(call, tmp_path).violations
    assert violation in found


def test_the_campaign_finds_calls_that_hang(tmp_path):
    def hang():
        while True:
            pass

    outcome = wrong_calls.perform(wrong_calls.Call("fit", hang, {}, []), tmp_path, limit=0.2)
    assert outcome.kind == "hangs"


def test_errors_of_the_users_callbacks_arrive_unchanged(tmp_path):
    """And only theirs: an error of a model, a loss or a measure is about that argument."""
    callbacks = [wrong_calls.FailingCallback("on_step")]
    arguments = {"model": wrong_calls.nn.Linear(5, 3), "clients": wrong_calls.labels(), "steps": 1, "progress": False}
    call = wrong_calls.Call("fit", dp.fit, {**arguments, "callbacks": callbacks}, [("callbacks", "fails")])
    outcome = wrong_calls.perform(call, tmp_path)
    assert (outcome.kind, outcome.violations) == ("user's error", ())
    call = wrong_calls.Call("fit", dp.fit, {**arguments, "loss": wrong_calls.failing}, [("loss", "fails")])
    assert wrong_calls.perform(call, tmp_path).kind == "refused"
