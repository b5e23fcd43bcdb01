"""User-defined measures, early stopping and the best model in runs of several processes."""

from pathlib import Path

import numpy as np
import pytest

import depositum as dp
from tests.support.rank_processes import launch
from tests.support.rank_runs import client_data, fit_with_callbacks_and_changes, small_model, stopping_arguments

pytestmark = pytest.mark.slow  # they start processes

N = 4


@pytest.mark.parametrize("monitor", ["train_loss", "fraction"])
def test_processes_stop_at_the_simulators_iteration_with_its_values(monitor: str, tmp_path: Path) -> None:
    """A measure that is not a mean over samples is the same on all ranks, and so is the best model."""
    (stopping, keep), arguments = stopping_arguments(N, "fraction", monitor)
    expected = dp.fit(small_model(), [client_data(i) for i in range(N)], callbacks=[stopping, keep], **arguments)
    assert expected.iterations == stopping.stopped_at == 8
    changes = {"out": tmp_path / "run"}
    first, second = launch(fit_with_callbacks_and_changes, 2, N, "fraction", monitor, per_rank=[changes, changes])
    for found in (first, second):
        assert isinstance(found, dict), found
        assert found["t"] == 8
        assert found["measure"] == pytest.approx(expected.history["fraction"].tolist(), rel=1e-10)
        assert found["stopped"] == (stopping.best_iteration, 8)
    assert first["measure"] == second["measure"]
    assert first["best"][0] == pytest.approx((keep.best[0].iteration, keep.best[0].value), rel=1e-10)
    for key, value in keep.model().state_dict().items():
        assert np.allclose(first["kept"][key], value.numpy(), rtol=1e-10, atol=1e-12), key
    assert all(np.array_equal(second["kept"][key], value) for key, value in first["kept"].items())
    loaded = dp.load(tmp_path / "run", small_model()).best_model.state_dict()
    assert all(np.array_equal(loaded[key].numpy(), value) for key, value in first["kept"].items())


@pytest.mark.parametrize(
    ("measure", "changes", "message"),
    [
        ("only_on_rank_0", {}, "metrics.only_on_rank_0: fails on outputs"),
        ("fraction", {"test": None}, "metrics.fraction: given, but there is no test data, and no process has all"),
    ],
)
def test_a_measure_that_cannot_be_evaluated_ends_all_ranks_before_work(
    measure: str, changes: dict[str, object], message: str
) -> None:
    ranks = launch(fit_with_callbacks_and_changes, 2, N, measure, "train_loss", per_rank=[changes, changes])
    assert ranks[0].startswith(f"ConfigError: {message}")
    assert message in ranks[1]
