"""Where a run of several processes resumes: the newest checkpoint that all of them have and can read.

Ranks wait for each other after every checkpoint, so that whenever a run is killed all ranks have one in common. If they
do not, files were lost or damaged, and starting again would replace those that are left: the run is refused. The one
exception is a run that was killed during its first checkpoint, which some ranks had written and others had not.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depositum.engines.distributed import ClusterCommunicator
from depositum.errors import RunError
from depositum.runs import checkpoint, client_checkpoints
from depositum.runs.checkpoint import Latest


def find_common_checkpoint(
    communicator: ClusterCommunicator, out: Path, n: int, clients: Sequence[int]
) -> Latest | None:
    """The newest checkpoint that all ranks can read, of which this one reads its part; None if a run begins.

    A collective call. The result's `problem` reports an older checkpoint than some rank has; where no iteration is
    common to all ranks, all of them raise the same `RunError`.
    """
    with communicator.all_or_none("look for checkpoints"):
        own = _look(out, clients)
    found = communicator.exchange_values(own, "look for checkpoints")
    unreadable: dict[int, str] = {rank: facts["damage"] for rank, facts in enumerate(found) if facts["damage"]}
    iterations = [set(rank["iterations"]) for rank in found]
    while common := set.intersection(*iterations):
        t = max(common)
        latest, damage = _try_to_read(out, n, clients, t)
        damages = communicator.exchange_values(damage, "read the checkpoint")
        if not any(damages):
            assert latest is not None
            with communicator.all_or_none("read the checkpoint"):
                if t in client_checkpoints.iterations(out, clients):
                    client_checkpoints.make_current(out, clients, t)
            return latest._replace(problem=_describe_gap(communicator, iterations, unreadable, t))
        for rank, text in enumerate(damages):
            if text:
                iterations[rank].discard(t)
                unreadable.setdefault(rank, text)
    if not any(iterations) and not unreadable:
        return None
    if not unreadable and not any(rank["certain"] for rank in found) and len(set.union(*iterations)) == 1:
        return None  # killed during the first checkpoint
    raise RunError(f"--out {out}: {_describe_loss(communicator, iterations, unreadable)}")


def _look(out: Path, clients: Sequence[int]) -> dict[str, Any]:
    """What this rank has: iterations, damage, and whether all ranks are known to have had a checkpoint once."""
    whole = [path for path in (out / checkpoint.PREVIOUS, out / checkpoint.CURRENT) if path.exists()]
    files = [*whole, *client_checkpoints.existing_files(out, clients)]
    own = client_checkpoints.iterations(out, clients) | set(checkpoint.by_iteration(whole))
    return {
        "iterations": sorted(own),
        "damage": next(iter(checkpoint.damaged(files).values()), ""),
        "certain": bool(whole) or client_checkpoints.saved_by_all(out, clients),
    }


def _try_to_read(out: Path, n: int, clients: Sequence[int], t: int) -> tuple[Latest | None, str]:
    """What this rank has of the checkpoint of iteration t, or why it cannot be read."""
    try:
        if t in client_checkpoints.iterations(out, clients):
            return Latest(client_checkpoints.read(out, clients, t), out / client_checkpoints.FOLDER), ""
        # All clients' rows in one file, as a simulator writes them.
        path = checkpoint.by_iteration((out / checkpoint.PREVIOUS, out / checkpoint.CURRENT))[t]
        return Latest(client_checkpoints.select_clients(checkpoint.read(path), n, clients), path), ""
    except RunError as error:
        return None, str(error)


def _describe_gap(
    communicator: ClusterCommunicator, iterations: Sequence[set[int]], unreadable: dict[int, str], t: int
) -> str | None:
    """Why the run resumes from an older checkpoint than some rank has, or which checkpoints are damaged."""
    if unreadable:
        by_text = {text: rank for rank, text in reversed(unreadable.items())}  # a shared file is reported once
        return "; ".join(f"{communicator.names[rank]}: {text}" for text, rank in reversed(by_text.items()))
    newest = max(set.union(*iterations))
    if newest == t:
        return None
    lacking = [rank for rank, own in enumerate(iterations) if newest not in own]
    return f"{_names(communicator, lacking)} no checkpoint of iteration {newest}"


def _describe_loss(
    communicator: ClusterCommunicator, iterations: Sequence[set[int]], unreadable: dict[int, str]
) -> str:
    """Which ranks lack the checkpoint that most ranks have, and what to do."""
    counts = Counter(t for own in iterations for t in own)
    advice = "restore the files clients/N.safetensors, or choose another folder"
    if not counts:
        return f"no rank has a complete checkpoint ({next(iter(unreadable.values()))}); {advice}"
    most = max(counts, key=lambda t: (counts[t], t))
    lacking = [rank for rank, own in enumerate(iterations) if most not in own]
    reason = next((f" ({unreadable[rank]})" for rank in lacking if rank in unreadable), "")
    having = communicator.names[next(rank for rank, own in enumerate(iterations) if most in own)]
    lost = f"{_names(communicator, lacking)} no checkpoint of iteration {most}, which {having} has{reason}"
    return f"{lost}; {advice}"


def _names(communicator: ClusterCommunicator, ranks: Sequence[int]) -> str:
    """At most three ranks by name, how many others, and the verb."""
    more = f" and {len(ranks) - 3} others" if len(ranks) > 3 else ""
    return f"{', '.join(communicator.names[rank] for rank in ranks[:3])}{more} {'have' if len(ranks) > 1 else 'has'}"
