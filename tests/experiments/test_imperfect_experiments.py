"""The experiments about imperfect networks as data; their quick runs are with the paper's."""

import pytest

from depositum import experiments
from depositum.experiments import SweepOptions
from depositum.experiments.sweep import apply_settings, make_cells

#: Cells of each sweep.
CELLS = {"compression": 28, "direction": 17, "loss": 20, "noise": 16, "participation": 18}


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_the_papers_ring_but_for_what_is_studied(name: str) -> None:
    """Data, model, h, stepsize and momentum of `topology`, five seeds; no cell is lost."""
    experiment = experiments.load_experiment(name)
    cells = make_cells(experiment, SweepOptions())
    assert len(cells) == CELLS[name]
    (ring, *_) = make_cells(experiments.load_experiment("topology"), SweepOptions())
    for cell in cells:
        table = cell.table
        assert table["run"]["seeds"] == [0, 1, 2, 3, 4]
        assert table["run"]["compile"] == "never"  # compilation takes longer than it saves
        if table["problem"]["dataset"] == "mnist":
            assert table["problem"] == ring.table["problem"]
            method = {key: value for key, value in table["algorithm"].items() if key in ("alpha", "gamma")}
            assert method == {"alpha": 0.05, "gamma": 0.5}
            share = table["run"].get("participation", {}).get("share", 1.0)
            assert table["run"]["steps"] * share == pytest.approx(500, rel=0.01)  # mini-batches of a client
            assert table["run"]["batch_size"] == 32


@pytest.mark.parametrize("name", CELLS)
def test_every_configuration_is_valid(name: str) -> None:
    """Its keys, methods, networks and channels, as `depositum reproduce` checks them before work."""
    experiments.make_plan(experiments.load_experiment(name), SweepOptions())


@pytest.mark.parametrize("name", CELLS)
def test_every_label_can_be_selected(name: str) -> None:
    """`--only axis=label,label` separates labels by commas."""
    experiment = experiments.load_experiment(name)
    assert [label for axis in experiment.axes for label in experiment.labels(axis) if "," in label] == []


def test_two_axes_can_set_two_arguments_of_one_component() -> None:
    """A table that settings are taken from is not changed by those of another axis."""
    shared = {"network": {"channel": {"noise": {"sigma": 0.5}}}}
    table: dict[str, dict[str, object]] = {}
    apply_settings(table, shared, "set")
    apply_settings(table, {"network.channel.noise.remedy": "sums"}, "set")
    assert table == {"network": {"channel": {"noise": {"sigma": 0.5, "remedy": "sums"}}}}
    assert shared == {"network": {"channel": {"noise": {"sigma": 0.5}}}}
    apply_settings(table, {"network.channel": "exact"}, "set")
    apply_settings(table, {"network.channel.top-k": 0.1}, "set")
    assert table == {"network": {"channel": {"top-k": 0.1}}}
