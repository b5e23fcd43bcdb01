"""What one process among many did, in a file of its own."""

import time
from pathlib import Path

from depositum.engines import Callback, Divergence, Loop


class RankLog(Callback):
    """Writes a line, with the time, at each moment of a run; a restart goes on in the same file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def say(self, line: str) -> None:
        """Write one line."""
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        self._file.flush()

    def on_start(self, loop: Loop) -> None:
        self.say(f"training from iteration {loop.t} to {loop.steps}")

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        self.say(f"iteration {loop.t} evaluated")

    def on_divergence(self, loop: Loop, divergence: Divergence) -> None:
        self.say(str(divergence))

    def on_checkpoint(self, loop: Loop) -> None:
        self.say(f"iteration {loop.snapshot.t} kept")

    def on_end(self, loop: Loop) -> None:
        self.say(f"ends at iteration {loop.t}")
