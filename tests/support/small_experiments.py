"""An experiment of seconds, and someone who watches it."""

import copy
from pathlib import Path
from typing import Any

import tomli_w

from depositum import experiments
from depositum.engines import Callback, Loop
from depositum.experiments import Experiment, Options
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
    from depositum.experiments.definition import read

    return read(tomli_w.dumps(table), name, Path())


class Recorder:
    """Watches a sweep: remembers what was said and run, and may end it or ask it to stop at some iteration."""

    def __init__(self, moment: Callback | None = None) -> None:
        self.callback = moment or Callback()
        self.groups: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.loops: list[Loop] = []

    def begin(self, title: str, work: float) -> None:
        assert work > 0

    def group(self, name: str, cells: int, work: float) -> None:
        self.groups.append((name, cells))

    def attach(self, loop: Loop) -> None:
        self.loops.append(loop)

    def say(self, line: str) -> None:
        self.said.append(line)

    def end(self) -> None:
        pass

    def stopped(self) -> bool:
        return any(loop.stop_requested for loop in self.loops)

    @property
    def cells(self) -> int:
        """How many cells were run."""
        return sum(count for _, count in self.groups)


def perform(
    table: dict[str, Any],
    cache: Path,
    moment: Callback | None = None,
    only: tuple[str, ...] = (),
    options: Options | None = None,
) -> tuple[Results, Recorder, experiments.Plan]:
    """Plan and run an experiment in this process."""
    watch = Recorder(moment)
    plan = experiments.plan(read_experiment(table), options or Options(), only)
    return experiments.perform(plan, cache, watch), watch, plan
