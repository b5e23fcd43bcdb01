"""Which of several processes write the files that exist once per folder: one for each folder, be it shared or not.

Every host gets history, models and curves, so the first process of each host would write them. Hosts that share a
folder (a network file system) must not all write the same files. They find out by leaving a file and looking for those
of the others: of the processes that see each other's, the lowest rank writes.
"""

import uuid

from depositum.engines.distributed import ClusterCommunicator
from depositum.errors import RunError
from depositum.runs.folder import PART, RunFolder


def is_writer(communicator: ClusterCommunicator, folder: RunFolder) -> bool:
    """Whether this process writes the files that its folder has once; creates the folder. A collective call."""
    meeting = uuid.uuid4().hex
    known = communicator.exchange_values([meeting, communicator.first_of_host], "prepare the folder")
    candidates = [rank for rank, (_, first_of_host) in enumerate(known) if first_of_host or rank == 0]
    # The name is new, so that no file system has cached that it does not exist.
    marks = {rank: folder.path / f".writer-{known[0][0]}-{rank}{PART}" for rank in candidates}
    own = marks.get(communicator.rank)
    try:
        with communicator.all_or_none("prepare the folder"):
            if own is not None:
                folder.create()
                try:
                    own.touch()
                except OSError as error:
                    raise RunError(f"--out {folder.path}: cannot be written to ({error.strerror})") from None
        seen = [rank for rank, mark in marks.items() if mark.exists()] if own is not None else []
        communicator.exchange_values(None, "prepare the folder")  # all have looked
    finally:
        if own is not None:
            own.unlink(missing_ok=True)
    return bool(seen) and communicator.rank == min(seen)
