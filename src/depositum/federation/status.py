"""How a member is doing, as a small file in its run folder: written by `depositum peer`, read by `federation status`.

The file `status.json` is replaced atomically, so that a reader always finds a complete one.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from depositum.bounded_reading import open_regular_file
from depositum.errors import DataError, RunError

#: The file in a member's run folder.
STATUS_FILE = "status.json"
#: More bytes than any status has.
MAX_BYTES = 4 << 20

State = Literal["starting", "waiting", "training", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class Waiting:
    """A neighbour that a member waits for.

    Attributes
    ----------
    name
        The neighbour.
    since
        Seconds since the epoch.
    what
        What is missing: `"connection"`, `"row of phase 17"`, `"agreement"`, …
    """

    name: str
    since: float
    what: str


@dataclass(frozen=True)
class Neighbour:
    """A neighbour, as a member sees it.

    Attributes
    ----------
    name
        The neighbour.
    connected
        Whether there is a connection now.
    since
        Since when it has been so, in seconds since the epoch.
    bytes_sent, bytes_received
        Of messages, in all sessions.
    phase
        The last phase that was exchanged with it.
    dropped_phases
        How many phases went on without it.
    """

    name: str
    connected: bool
    since: float
    bytes_sent: int = 0
    bytes_received: int = 0
    phase: int = 0
    dropped_phases: int = 0


@dataclass(frozen=True)
class Status:
    """A member at one moment.

    Attributes
    ----------
    member
        Its name.
    state
        What it does: `"waiting"` names in `waiting_for` whom it waits for; `"failed"` says why in `reason`.
    phase, iteration, steps
        Phases and iterations that it has finished, and the iterations of the complete run.
    process
        The identifier of the process that wrote this, for a reader on the same host to see whether it still runs.
    updated
        When this was written, in seconds since the epoch.
    loss
        The last evaluated training loss: of the federation's averaged model or, where members share no measures, of
        the member's own.
    """

    member: str
    state: State = "starting"
    phase: int = 0
    iteration: int = 0
    steps: int = 0
    waiting_for: tuple[Waiting, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    reason: str = ""
    loss: float | None = None
    process: int = field(default_factory=os.getpid)
    updated: float = field(default_factory=time.time)

    def write(self, folder: Path) -> None:
        """Replace the status in a run folder."""
        temporary = folder / f".{STATUS_FILE}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(folder / STATUS_FILE)

    @classmethod
    def read(cls, folder: Path) -> "Status | None":
        """The status in a run folder; None if the member has not been started there."""
        path = folder / STATUS_FILE
        if not path.exists():
            return None
        try:
            with open_regular_file(path) as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError("it is too long")
            table = json.loads(content)
            return cls(
                **{
                    **table,
                    "waiting_for": tuple(Waiting(**_plain(entry)) for entry in table["waiting_for"]),
                    "neighbours": tuple(Neighbour(**_plain(entry)) for entry in table["neighbours"]),
                }
            )
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RunError(f"{path}: is damaged; the member replaces it when it runs") from None

    def is_running(self) -> bool:
        """Whether the process that wrote this still exists on this host."""
        if self.state in ("finished", "stopped", "failed"):
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):
            return True
        return True


def _plain(entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise TypeError
    return entry
