"""What a member is doing, for its user: `status.json`, and lines about whom it waits for."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from depositum.engines import Callback, Loop
from depositum.federation.status import Neighbour, State, Status, Waiting
from depositum.peers.peer_communicator import PeerCommunicator, Wait

#: Seconds between two looks, and after which a wait is reported in a line; then ever more rarely.
LOOK, REPORT = 1.0, 10.0


class StatusWriter(Callback):
    """Writes the status of a member whenever it has changed, and reports whom it waits for.

    Parameters
    ----------
    say
        Called with one line for the user.
    """

    def __init__(self, communicator: PeerCommunicator, steps: int, period: int, say: Callable[[str], None]) -> None:
        self._communicator, self._steps, self._period, self._say = communicator, steps, period, say
        self._state: State = "starting"
        self._iteration = 0
        self._loss: float | None = None
        self._reason = ""
        self._reported: tuple[str, float] = ("", 0.0)
        self._next_report = REPORT
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="status", daemon=True)
        self._write()
        self._thread.start()

    def on_start(self, loop: Loop) -> None:
        self._state, self._iteration = "training", loop.t
        self._write()

    def on_progress(self, loop: Loop) -> None:
        self._iteration = loop.t

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        loss = records[0].get("train_loss", records[0].get("own_loss"))
        self._loss = float(loss) if isinstance(loss, float) else self._loss

    def end(self, state: State, reason: str = "") -> None:
        """Write the last status."""
        self._ended.set()
        self._thread.join()
        self._state, self._reason = state, reason
        self._write()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            wait = self._communicator.waiting
            if wait is not None:
                self._report(wait)
            self._write()

    def _report(self, wait: Wait) -> None:
        if self._reported != wait[:2]:
            self._reported, self._next_report = (wait.name, wait.since), REPORT
        seconds = time.time() - wait.since
        if seconds >= self._next_report:
            self._next_report = max(2 * self._next_report, seconds + REPORT)
            since = time.strftime("%H:%M:%S", time.localtime(wait.since))
            self._say(f"waiting for {wait.name} since {since}: {wait.what}")

    def _write(self) -> None:
        communicator = self._communicator
        wait = communicator.waiting
        waiting = () if wait is None or self._ended.is_set() else (Waiting(wait.name, wait.since, wait.what),)
        late = wait is not None and time.time() - wait.since > LOOK and self._state in ("starting", "training")
        status = Status(
            member=communicator.name,
            state="waiting" if late else self._state,
            phase=-(-self._iteration // self._period),
            iteration=self._iteration,
            steps=self._steps,
            waiting_for=waiting,
            neighbours=tuple(
                Neighbour(
                    name=edge.name,
                    connected=edge.connected,
                    since=edge.since,
                    bytes_sent=communicator.sent.bytes.get(edge.name, 0),
                    bytes_received=communicator.received.bytes.get(edge.name, 0),
                    phase=edge.last_phase,
                    dropped_phases=edge.dropped_phases,
                )
                for edge in communicator.edges.values()
            ),
            reason=self._reason,
            loss=self._loss,
        )
        # On a full disk the run ends where its state cannot be written; its status waits for room.
        with self._lock, suppress(OSError):
            status.write(communicator.folder.runs)
