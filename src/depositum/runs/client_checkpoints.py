"""A checkpoint per client, for runs of several processes: `clients/N.safetensors`, and the one before.

Each process writes the files of its own clients. Ranks wait for each other after every checkpoint, so that when one
begins the next, all have finished the last: of the two iterations that a client's files hold, one is held by all
clients. That is where a run resumes, on any number of processes.

At the end, if one folder has the files of all clients, they are also combined into the `state.safetensors` that a
simulator would have written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from depositum.engines import Costs, Snapshot
from depositum.runs import checkpoint

FOLDER = "clients"
#: A file that exists once all ranks have saved a checkpoint: from then on, all of them must have one.
SAVED_BY_ALL = "saved-by-all"


def write(folder: Path, snapshot: Snapshot, clients: Sequence[int]) -> None:
    """Write the checkpoint of each of the clients whose rows the snapshot has; the current one becomes the previous."""
    where = folder / FOLDER
    where.mkdir(exist_ok=True)
    for index, client in enumerate(clients):
        checkpoint.write(_current(where, client), _rows_of_client(snapshot, index, len(clients)))


def iterations(folder: Path, clients: Sequence[int]) -> set[int]:
    """The iterations at which a folder has undamaged checkpoints of all these clients."""
    found = [set(_files(folder, client)) for client in clients]
    return set.intersection(*found) if found else set()


def existing_files(folder: Path, clients: Sequence[int]) -> list[Path]:
    """The checkpoint files of these clients, complete or damaged."""
    current = [_current(folder / FOLDER, client) for client in clients]
    return [path for one in current for path in (checkpoint.previous(one), one) if path.exists()]


def mark_saved_by_all(folder: Path) -> None:
    """Remember, after ranks have waited for each other, that all of them have saved a checkpoint."""
    (folder / FOLDER / SAVED_BY_ALL).touch()


def saved_by_all(folder: Path, clients: Sequence[int]) -> bool:
    """Whether all ranks are known to have had a checkpoint: by the mark, or since a rank began its second one."""
    previous = (checkpoint.previous(_current(folder / FOLDER, client)) for client in clients)
    return (folder / FOLDER / SAVED_BY_ALL).exists() or any(path.exists() for path in previous)


def damaged(folder: Path, clients: Sequence[int]) -> dict[Path, str]:
    """The damaged checkpoints of these clients, each with a message that says what is wrong."""
    return checkpoint.damaged(path for client in clients for path in _both(folder, client))


def read(folder: Path, clients: Sequence[int], t: int) -> Snapshot:
    """The rows of these clients at iteration t, as one snapshot."""
    return _combined([checkpoint.read(_files(folder, client)[t]) for client in clients])


def make_current(folder: Path, clients: Sequence[int], t: int) -> None:
    """Make iteration t the current checkpoint, in place of a later one: the next must not push it out.

    Damaged files are kept under another name.
    """
    for path in damaged(folder, clients):
        checkpoint.keep_damaged(path)
    for client in clients:
        path = _files(folder, client)[t]
        if path != (current := _current(folder / FOLDER, client)):
            path.replace(current)


def select_clients(snapshot: Snapshot, n: int, clients: Iterable[int]) -> Snapshot:
    """The rows of some of the n clients of a snapshot that has all."""
    return _combined([_rows_of_client(snapshot, client, n) for client in clients])


def _current(where: Path, client: int) -> Path:
    return where / f"{client}.safetensors"


def _both(folder: Path, client: int) -> tuple[Path, Path]:
    """The paths of the previous and the current checkpoint of a client."""
    current = _current(folder / FOLDER, client)
    return checkpoint.previous(current), current


def _files(folder: Path, client: int) -> dict[int, Path]:
    """The undamaged checkpoints of a client, by iteration."""
    return checkpoint.by_iteration(_both(folder, client))


def _rows_of_client(snapshot: Snapshot, index: int, clients: int) -> Snapshot:
    """The rows of one of several clients, of all trials."""
    rows, trials = len(snapshot.tensors["x"]), len(snapshot.seeds)

    def own(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != rows:
            return tensor
        return tensor.view(trials, clients, *tensor.shape[1:])[:, index].contiguous()

    return replace(snapshot, tensors={name: own(tensor) for name, tensor in snapshot.tensors.items()})


def _combined(parts: Sequence[Snapshot]) -> Snapshot:
    """One snapshot of several clients from one of each; its costs are the mean of theirs."""
    first = parts[0]
    rows = len(first.tensors["x"])

    def join(name: str) -> Tensor:
        tensor = first.tensors[name]
        if tensor.dim() == 0 or len(tensor) != rows:
            return tensor
        return torch.stack([part.tensors[name] for part in parts], dim=1).flatten(0, 1)

    costs = first.costs
    if any(part.costs != costs for part in parts):  # else a mean would only add rounding
        total = reduce(Costs.__add__, (part.costs for part in parts))
        costs = Costs(costs.phases, total.bytes_sent / len(parts), total.gradient_evaluations / len(parts))
    tensors = {name: join(name) for name in first.tensors}
    return replace(first, costs=costs, tensors=tensors, diverged=dict(first.diverged))
