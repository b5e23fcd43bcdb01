"""A small experiment, and an observer that records what is run."""

import copy
from pathlib import Path
from typing import Any

import tomli_w

from depositum import experiments
from depositum.engines import Callback, Loop
from depositum.experiments import Experiment, SweepOptions
from depositum.experiments.results import Results

#: Two groups (period 1, period 2) of two cells (α) each; a linear model of 15 parameters, four clients.
SMALL: dict[str, Any] = {
    "title": "Small",
    "paper": "Fig. 0",
    "seeds": [0, 1],
    "base": {
        "problem": {
            "dataset": {"synthetic": {"samples": 60, "features": 4, "classes": 3}},
            "clients": 4,
            "partition": "iid",
            "regularizer": "l1",
            "beta": 1e-3,
        },
        "run": {"steps": 12, "batch_size": 4, "evaluate_every": 4, "checkpoint_every": 5, "device": "cpu"},
    },
    "sweep": [
        {
            "axis": "period",
            "values": [
                {"label": "T0 = 1", "set": {"run.period": 1}},
                {"label": "T0 = 2", "set": {"run.period": 2}},
            ],
        },
        {
            "axis": "alpha",
            "values": [
                {"label": "small", "set": {"algorithm.alpha": 0.01}},
                {"label": "large", "set": {"algorithm": {"alpha": 0.1}}},
            ],
        },
    ],
    "figure": {"series": ["period", "alpha"], "panel": [{"title": "Loss", "y": "train_loss"}]},
    "table": [
        {
            "title": "Final loss",
            "rows": ["period"],
            "columns": ["alpha"],
            "measure": "train_loss",
            "paper": [["T0 = 1", "1.00±0.10", "0.90±0.10"]],
        }
    ],
    "claim": [
        {
            "text": "Larger is lower.",
            "each": ["period"],
            "check": {"ordered": {"measure": "train_loss", "axis": "alpha", "direction": "decreasing"}},
        }
    ],
}


def small(**changes: Any) -> dict[str, Any]:
    """`SMALL` with some of its keys changed."""
    return {**copy.deepcopy(SMALL), **changes}


def write_experiment(path: Path, table: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    return path


def read_experiment(table: dict[str, Any], name: str = "mine") -> Experiment:
    from depositum.experiments.definition import parse_experiment

    return parse_experiment(tomli_w.dumps(table), name, Path())


class Recorder:
    """Observes a sweep: records messages and groups; its callback may kill the sweep or ask it to stop."""

    def __init__(self, callback: Callback | None = None) -> None:
        self.callback = callback or Callback()
        self.groups: list[tuple[str, int]] = []
        self.messages: list[str] = []
        self.loops: list[Loop] = []

    def begin(self, title: str, work: float) -> None:
        assert work > 0

    def group(self, name: str, cells: int, work: float) -> None:
        self.groups.append((name, cells))

    def attach(self, loop: Loop) -> None:
        self.loops.append(loop)

    def message(self, line: str) -> None:
        self.messages.append(line)

    def end(self) -> None:
        pass

    def stopped(self) -> bool:
        return any(loop.stop_requested for loop in self.loops)

    @property
    def cells(self) -> int:
        """How many cells were run."""
        return sum(count for _, count in self.groups)


def run_small_experiment(
    table: dict[str, Any],
    cache: Path,
    callback: Callback | None = None,
    only: tuple[str, ...] = (),
    options: SweepOptions | None = None,
) -> tuple[Results, Recorder, experiments.Plan]:
    """Plan and run an experiment in this process."""
    recorder = Recorder(callback)
    plan = experiments.make_plan(read_experiment(table), options or SweepOptions(), only)
    return experiments.run_experiment(plan, cache, recorder), recorder, plan
