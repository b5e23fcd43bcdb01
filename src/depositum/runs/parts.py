"""A checkpoint per client, for runs of several processes: `clients/N.safetensors`, and the one before.

Each process writes its own clients' files; nobody writes another's. Ranks wait for each other after every checkpoint,
so that when one begins the next, all have finished the last: of the two iterations that a client's files hold, one is
always held by all clients. That is where a run goes on, on any number of processes.

At the end, where one folder has the files of all clients, they are also put together to the `state.safetensors` that
a simulator would have written.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from depositum.engines import Costs, Snapshot
from depositum.errors import RunError
from depositum.runs import checkpoint

FOLDER = "clients"


def write(folder: Path, snapshot: Snapshot, clients: Sequence[int]) -> None:
    """Write the checkpoint of each of the clients whose rows the snapshot has; what was current is the previous one."""
    where = folder / FOLDER
    where.mkdir(exist_ok=True)
    for place, client in enumerate(clients):
        checkpoint.write(_current(where, client), _of(snapshot, place, len(clients)))


def iterations(folder: Path, clients: Sequence[int]) -> set[int]:
    """The iterations at which a folder has whole checkpoints of all these clients."""
    found = [set(_files(folder, client)) for client in clients]
    return set.intersection(*found) if found else set()


def read(folder: Path, clients: Sequence[int], t: int) -> Snapshot:
    """The rows of these clients at iteration t, put together."""
    return _together([checkpoint.read(_files(folder, client)[t]) for client in clients])


def keep_only(folder: Path, clients: Sequence[int], t: int) -> None:
    """Make iteration t the current checkpoint: a later one is not to push it out."""
    for client in clients:
        path = _files(folder, client)[t]
        if path != (current := _current(folder / FOLDER, client)):
            path.replace(current)


def _current(where: Path, client: int) -> Path:
    return where / f"{client}.safetensors"


def _files(folder: Path, client: int) -> dict[int, Path]:
    """The whole checkpoints of a client, by iteration."""
    current = _current(folder / FOLDER, client)
    found = {}
    for path in (checkpoint.previous(current), current):
        if path.exists():
            try:
                found[checkpoint.iteration(path)] = path
            except RunError:
                continue
    return found


def _of(snapshot: Snapshot, place: int, share: int) -> Snapshot:
    """The rows of one client of `share`, of all seeds."""
    rows, seeds = len(snapshot.tensors["x"]), len(snapshot.seeds)

    def own(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != rows:
            return tensor
        return tensor.view(seeds, share, *tensor.shape[1:])[:, place].contiguous()

    tensors = {name: own(tensor) for name, tensor in snapshot.tensors.items()}
    return Snapshot(snapshot.seeds, snapshot.t, snapshot.costs, tensors, snapshot.diverged, snapshot.backend)


def of_clients(snapshot: Snapshot, n: int, clients: Iterable[int]) -> Snapshot:
    """The rows of some of the n clients of a snapshot that has all."""
    return _together([_of(snapshot, client, n) for client in clients])


def _together(parts: Sequence[Snapshot]) -> Snapshot:
    """The snapshot of several clients from those of each; it has cost the mean of what they cost."""
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
    return Snapshot(first.seeds, first.t, costs, tensors, dict(first.diverged), first.backend)
