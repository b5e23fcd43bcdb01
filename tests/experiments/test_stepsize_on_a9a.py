"""The paper's first experiment on the real A9A data: what a larger stepsize does."""

from pathlib import Path

import pytest

from depositum.runs import execute, load

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "a9a-stepsize.toml"
ALPHAS = (0.005, 0.01, 0.02, 0.05, 0.1)


@pytest.mark.parametrize("momentum", ["polyak", "nesterov"])
def test_larger_steps_learn_faster_and_agree_less(momentum: str, real_data: Path, tmp_path: Path) -> None:
    """Over the five stepsizes of Fig. e1 the loss at iteration 100 falls and the consensus error rises, in order."""
    if not (real_data / "a9a").is_dir():
        pytest.skip("the a9a files are not in DEPOSITUM_DATA")
    losses, errors = [], []
    for alpha in ALPHAS:
        overrides = (f"algorithm.alpha={alpha}", f"algorithm.momentum={momentum}", "run.seeds=[0, 1]")
        config = load(EXAMPLE, [*overrides, "run.evaluate_every=100", "metrics.costly_every=0", "run.steps=300"])
        result = execute(config, tmp_path / str(alpha))
        frame = result.history.frame
        losses.append(frame[frame["iteration"] == 100]["train_loss"].mean())
        errors.append(frame[frame["iteration"] > 0]["consensus_x"].mean())
        assert frame[frame["iteration"] == 300]["test_accuracy"].min() > 0.75
    assert losses == sorted(losses, reverse=True)
    assert errors == sorted(errors)
