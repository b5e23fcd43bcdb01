"""A member's checkpoints: two on the schedule that all members share, and one where the user stopped it.

Beside the rows, a checkpoint has how many messages were sent and received by then. Neighbours keep what came after the
older one of the schedule, so that a member may lose the newest. A member that continues from the older one leaves the
newer one where it is: it will come there again, with the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from depositum.engines import Snapshot
from depositum.engines.snapshot import LINK
from depositum.errors import RunError
from depositum.peers.resumption import START, Candidate
from depositum.runs import checkpoint, client_checkpoints


class MemberCheckpoints:
    """The checkpoints in a member's run folder.

    Attributes
    ----------
    damage
        Messages about checkpoints that cannot be read; the files are kept under other names.
    """

    def __init__(self, folder: Path, client: int, neighbours: Sequence[str]) -> None:
        self._neighbours = tuple(neighbours)
        self._current = folder / client_checkpoints.FOLDER / f"{client}.safetensors"
        self._previous = checkpoint.previous(self._current)
        self._stopped = self._current.with_name(f"{client}.stopped.safetensors")
        self._zeros = dict.fromkeys(self._neighbours, 0)
        self._scheduled: list[Candidate] = []
        self._paths: dict[int, Path] = {}
        self.damage: list[str] = []
        self._current.parent.mkdir(parents=True, exist_ok=True)
        self._look()

    def _look(self) -> None:
        for path in (self._previous, self._current, self._stopped):
            if not path.exists():
                continue
            try:
                found = self._candidate(checkpoint.read(path))
            except RunError as error:
                self.damage.append(f"{error}; it is kept as {checkpoint.keep_damaged(path).name}")
                continue
            self._paths[found.t] = path
            if path != self._stopped and (not self._scheduled or self._scheduled[-1].t < found.t):
                self._scheduled.append(found)

    def _candidate(self, snapshot: Snapshot) -> Candidate:
        sent, received = (
            {name: int(snapshot.tensors[f"{LINK}{what}.{name}"]) for name in self._neighbours}
            if all(f"{LINK}{what}.{name}" in snapshot.tensors for name in self._neighbours)
            else {}
            for what in ("sent", "received")
        )
        if len(sent) < len(self._neighbours) or len(received) < len(self._neighbours):
            raise RunError("a checkpoint without the counts of messages with all neighbours; it is of another run")
        return Candidate(snapshot.t, sent, received)

    @property
    def candidates(self) -> list[Candidate]:
        """Where the run can continue, newest first; at last the start."""
        found = [self._candidate(checkpoint.read(self._paths[t])) for t in sorted(self._paths, reverse=True)]
        return [*found, Candidate(START, self._zeros, self._zeros)]

    def read(self, t: int) -> Snapshot | None:
        """The snapshot of a candidate; None for the start."""
        return None if t == START else checkpoint.read(self._paths[t])

    @property
    def covered(self) -> Mapping[str, int]:
        """The messages that the older checkpoint of the schedule had received, which will not be asked for again."""
        return self._scheduled[0].received if len(self._scheduled) > 1 else self._zeros

    def write(self, snapshot: Snapshot, scheduled: bool) -> None:
        """Write a checkpoint; one that is not on the schedule does not replace one that is."""
        found = self._candidate(snapshot)
        if not scheduled:
            checkpoint.write(self._stopped, snapshot, keep_previous=False)
            return
        newest = self._scheduled[-1].t if self._scheduled else START
        if found.t < newest:
            return  # one that was continued from an older one has not come there again yet
        checkpoint.write(self._current, snapshot, keep_previous=found.t > newest)
        if found.t > newest:
            self._scheduled = [*self._scheduled[-1:], found]
        self._stopped.unlink(missing_ok=True)
