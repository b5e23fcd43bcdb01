"""Settings that all peers are timed on, their data, the clock, and the line that each script prints.

This module is imported in every peer's environment, so it uses the standard library and NumPy only.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

BATCH_SIZE = 32
PERIOD = 10  # T0: local steps between two communications
STEP_SIZE = 0.01


@dataclass(frozen=True)
class Setting:
    """`n` clients with `samples` inputs of `shape` each; a model of `hidden` widths, and two convolutions if `cnn`."""

    name: str
    n: int
    samples: int
    shape: tuple[int, ...]
    classes: int
    hidden: tuple[int, ...] = ()
    cnn: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the fully connected layers, with the inputs (or the 32 channels of 8×8 after the convolutions)."""
        inputs = 32 * 8 * 8 if self.cnn else int(np.prod(self.shape))
        return (inputs, *self.hidden, self.classes)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("linear-10", 10, 3256, (123,), 2),
        Setting("linear-1000", 1000, 32, (123,), 2),
        Setting("mlp-10", 10, 6000, (784,), 10, (128, 64)),
        Setting("cnn-20", 20, 600, (1, 32, 32), 10, (128,), cnn=True),
    )
}


def client_data(setting: Setting, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's inputs `[samples, *shape]` (float32) and labels `[samples]` (int64), the same for all peers."""
    random = np.random.default_rng([0, client])
    inputs = random.standard_normal((setting.samples, *setting.shape), dtype=np.float32)
    return inputs, random.integers(setting.classes, size=setting.samples)


class Clock:
    """Times rounds: call `tick` at the end of each, until `done`.

    The first rounds are a warm-up (compilation, caches) and are not counted. With `steps`, that many iterations are
    timed; without, at least `SECONDS` and `LEAST_ROUNDS` rounds.
    """

    WARM_UP_ROUNDS, SECONDS, LEAST_ROUNDS = 2, 4.0, 3

    def __init__(self, steps: int | None = None, steps_per_round: int = PERIOD, now: Callable[[], float] | None = None):
        self.steps, self.steps_per_round = steps, steps_per_round
        self.now = now or time.perf_counter
        self.ticks: list[float] = []

    def tick(self) -> None:
        """Record the end of a round."""
        self.ticks.append(self.now())

    @property
    def rounds(self) -> list[float]:
        """Seconds of each round after the warm-up."""
        return [after - before for before, after in pairwise(self.ticks[self.WARM_UP_ROUNDS - 1 :])]

    @property
    def done(self) -> bool:
        rounds = self.rounds
        if self.steps is not None:
            return len(rounds) * self.steps_per_round >= self.steps
        return len(rounds) >= self.LEAST_ROUNDS and sum(rounds) >= self.SECONDS

    @property
    def milliseconds(self) -> float:
        """Median time of a round, per iteration."""
        return 1000 * median(self.rounds) / self.steps_per_round


def main(peer: str, measure: Callable[[Setting, Clock, int], str]) -> None:
    """Time the setting given on the command line and print the result as one line of JSON.

    `measure(setting, clock, threads)` runs rounds of PERIOD iterations, ticks the clock after each until it is done,
    and returns a note for the table.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    setting, clock = SETTINGS[arguments.setting], Clock(arguments.steps)
    note = measure(setting, clock, arguments.threads)
    line = {"peer": peer, "setting": setting.name, "n": setting.n, "ms_per_iteration": clock.milliseconds}
    print(json.dumps({**line, "threads": arguments.threads, "rounds": len(clock.rounds), "note": note}), flush=True)
