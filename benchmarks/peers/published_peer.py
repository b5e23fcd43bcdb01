"""What the scripts of the published benchmarks in peers share: data, evaluation, the clock with its limit, the record.

Scripts and their workers run with `src` and `benchmarks` in PYTHONPATH, and with what the peer needs.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from published_results import device_name, report
from torch import Tensor

from depositum import data
from depositum.provenance import describe_versions

BATCH = 50  # of BlazeFL's benchmark


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def save_clients(folder: Path, clients: int, test_images: int) -> tuple[int, Tensor, Tensor]:
    """Write a file for each client of BlazeFL's benchmark; return the images of each, and the test images and labels.

    100 clients have two classes each, of which the first `clients` are kept.
    """
    dataset = data.load("cifar10")
    test = dataset.test
    assert test is not None
    parts = data.partition({"shards": {"per_client": 2}}, dataset, 100, 0)[:clients]
    for client, part in enumerate(parts):
        own = torch.as_tensor(part)
        torch.save((dataset.train.inputs[own], dataset.train.targets[own]), folder / f"{client}.pt")
    inputs, labels = torch.as_tensor(test.inputs), torch.as_tensor(test.targets)
    return len(parts[0]), inputs[:test_images], labels[:test_images]


@cache
def client_data(folder: str, client: int) -> tuple[Tensor, Tensor]:
    """A client's images and labels on the device; each process reads them once."""
    inputs, labels = torch.load(Path(folder) / f"{client}.pt", map_location=device())
    return inputs, labels


class Clock:
    """Times rounds: call `tick` at the end of each, until `done`, which a limit in seconds makes true early."""

    def __init__(self, began: float, rounds: int, limit: float | None) -> None:
        self.began, self.rounds, self.limit = began, rounds, limit
        self.ticks: list[float] = []

    def start(self) -> None:
        """Training begins."""
        self.ticks = [time.perf_counter()]

    def tick(self, note: str = "") -> None:
        """A round ends."""
        self.ticks.append(time.perf_counter())
        if note:
            print(f"round {self.completed}: {note}, {self.elapsed:.1f} s", flush=True)

    @property
    def completed(self) -> int:
        return len(self.ticks) - 1

    @property
    def elapsed(self) -> float:
        return self.ticks[-1] - self.ticks[0]

    @property
    def done(self) -> bool:
        return self.completed >= self.rounds or (self.limit is not None and self.elapsed > self.limit)

    def times(self, steps_per_round: int) -> dict[str, Any]:
        """The record's times; `steps_per_round` are of all clients together.

        Client steps per second leave out the first round, which is a warm-up. After a limit, the times are projected:
        the first round as measured, and all others like the mean of the later ones.
        """
        first = self.ticks[1] - self.ticks[0]
        later = (self.elapsed - first) / (self.completed - 1) if self.completed > 1 else None
        training = self.elapsed + (self.rounds - self.completed) * (first if later is None else later)
        return {
            "projected": self.completed < self.rounds,
            "rounds_done": self.completed,
            "first_round_s": first,
            "training_s": training,
            "cold_s": self.ticks[0] - self.began + training,
            "client_steps_per_s": None if later is None else steps_per_round / later,
        }


def parse(doc: str | None, rounds: int, add: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """Parse the options that all scripts have, and those that `add` adds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--limit", type=float, help="seconds of training, after which no further round begins")
    parser.add_argument("--out", type=Path)
    add(parser)
    return parser.parse_args()


def add_blazefl_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of BlazeFL's benchmark."""
    parser.add_argument("--model", default="lenet", choices=["lenet", "resnet18"])
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of a round")
    parser.add_argument("--clients", type=int, default=100, help="with 500 images each")
    parser.add_argument("--alpha", type=float, default=0.1)


@torch.no_grad()
def accuracy(model: torch.nn.Module, inputs: Tensor, labels: Tensor, batch: int = 2000) -> float:
    """Percentage of images that the model classifies correctly; the images are on the model's device."""
    model.eval()
    pairs = zip(inputs.split(batch), labels.split(batch), strict=True)
    return 100 * sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs) / len(labels)


def finish(benchmark: str, peer: str, clock: Clock, fields: dict[str, Any], out: Path | None) -> None:
    """Report the record, which begins with what all records have."""
    head = {"benchmark": benchmark, "peer": peer, "device": device_name(device()), "versions": describe_versions()}
    report({**head, "rounds": clock.rounds, **fields}, out)


def lapses(names: Sequence[str], marks: Sequence[float]) -> dict[str, float]:
    """The seconds between consecutive marks, by name."""
    return {name: after - before for name, before, after in zip(names, marks, marks[1:], strict=False)}
