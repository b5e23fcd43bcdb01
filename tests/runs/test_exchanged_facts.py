"""What processes learn of each other's data, in full: every value and tensor that crosses the communicator."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from depositum.data import encoding_digest
from depositum.engines.distributed import Placement, problem_from_local_clients
from depositum.errors import DataError
from depositum.runs import load
from depositum.runs.problems import build_local_problem
from tests.support.small_runs import write_config
from tests.support.thread_communicator import Hub, ThreadCommunicator, run_threads

SIZE, CLIENTS = 2, 4
#: Numbers of samples that occur nowhere else.
SAMPLES = [211, 223, 227, 229]


class RecordingCommunicator(ThreadCommunicator):
    """Records every value and tensor that this rank gives to the others."""

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__(hub, rank)
        self.values: list[Any] = []
        self.tensors: list[list[float]] = []

    def exchange_values(self, value: Any, what: str, patience: float = 600.0) -> list[Any]:
        if value not in ({}, ""):  # no error, in `all_or_none`; no frozen base
            self.values.append(json.loads(json.dumps(value)))
        return super().exchange_values(value, what, patience)

    def sum(self, z: Tensor) -> Tensor:
        self.tensors.append(z.tolist())
        return super().sum(z)

    def minimum(self, z: Tensor) -> Tensor:
        self.tensors.append(z.tolist())
        return super().minimum(z)


def labels_of(client: int) -> np.ndarray[Any, Any]:
    """Client 3 alone has label 5, and nobody has label 4."""
    labels = np.arange(SAMPLES[client]) % 4
    labels[0] = 5 if client == 3 else 0
    return labels


def write_run(folder: Path, weighting: str) -> Path:
    (folder / "data").mkdir()
    for client in range(CLIENTS):
        x = np.random.default_rng(client).normal(size=(SAMPLES[client], 3))
        np.savez(folder / "data" / f"{client}.npz", x=x, y=labels_of(client))
    problem = {"dataset": "data/{client}.npz", "model": "linear", "partition": "natural", "weighting": weighting}
    return write_config(folder / "c.toml", problem={**problem, "clients": CLIENTS})


def recorded(work: Any) -> list[RecordingCommunicator]:
    """What each rank gave to the others."""

    def one(communicator: ThreadCommunicator) -> RecordingCommunicator:
        own = RecordingCommunicator(communicator._hub, communicator.rank)
        work(own)
        return own

    return run_threads(SIZE, one)


@pytest.mark.filterwarnings("ignore:.*but none is 4")
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_of_clients_files_only_what_the_model_needs_is_told(tmp_path: Path, weighting: str) -> None:
    """The shape of a sample, whether there are test data and, with weighting by samples only, their numbers; the number
    of classes, and which labels occur, in reductions alone. Fails if anything else is told to the others.
    """
    config = write_run(tmp_path, weighting)

    def work(communicator: RecordingCommunicator) -> None:
        held = Placement(CLIENTS, SIZE).clients(communicator.rank)
        problem = build_local_problem(load(config, held=lambda n: held), communicator)
        assert problem.layout.size == 6 * 4  # six classes, of which this rank may have four

    for rank, communicator in enumerate(recorded(work)):
        facts = {"settings": {}, "shapes": [[3]], "encodings": [encoding_digest((), ())], "test": False}
        if weighting == "samples":
            facts["samples"] = SAMPLES[2 * rank : 2 * rank + 2]
        assert communicator.values == [facts]
        own = {0, 1, 2, 3, 5} if rank == 1 else {0, 1, 2, 3}
        # Whether labels are used, the number of classes, and a bit for each class.
        assert communicator.tensors == [[-1], [-1 - max(own)], [int(label not in own) for label in range(6)]]


def test_labels_that_nobody_has_are_still_reported(tmp_path: Path) -> None:
    """As where one process loads all files. Fails if the union of all ranks' labels is not known."""
    config = write_run(tmp_path, "uniform")
    with pytest.warns(RuntimeWarning, match="has 5 different labels, from 0 to 5, but none is 4"):
        recorded(lambda c: build_local_problem(load(config, held=lambda n: Placement(n, SIZE).clients(c.rank)), c))


def test_a_label_that_is_not_a_class_index_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    config = write_run(tmp_path, "uniform")
    np.savez(tmp_path / "data" / "3.npz", x=np.zeros((2, 3)), y=np.array([0, 2_000_000_000]))

    def work(communicator: RecordingCommunicator) -> None:
        with pytest.raises(DataError, match="the largest label is 2000000000"):
            build_local_problem(load(config, held=lambda n: range(n)), communicator)

    recorded(work)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fit_tells_no_numbers_of_samples_unless_clients_are_weighted_by_them(weighting: str) -> None:
    """Fails if the others can count a client's samples, or learn its labels."""

    def work(communicator: RecordingCommunicator) -> None:
        rank = communicator.rank
        pairs = [(torch.zeros(SAMPLES[i], 3), torch.from_numpy(labels_of(i))) for i in (2 * rank, 2 * rank + 1)]
        settings = {"seed": 0, "loss": None, "test": None, "regularizer": None, "beta": 0.0, "weighting": weighting}
        problem = problem_from_local_clients(communicator, nn.Linear(3, 6), pairs, settings)
        assert problem.n == CLIENTS

    for rank, communicator in enumerate(recorded(work)):
        (facts,) = communicator.values
        assert facts.get("samples") == (SAMPLES[2 * rank : 2 * rank + 2] if weighting == "samples" else None)
        assert facts.keys() - {"samples"} == {
            *("clients", "inputs", "targets", "table", "test", "seed", "beta", "regularizer", "weighting")
        }
        assert not any(str(number) in json.dumps(facts) for number in SAMPLES) or weighting == "samples"
        assert communicator.tensors == []
