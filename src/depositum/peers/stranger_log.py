"""One line in the log for each stranger that was refused; of many at once, the first ones and how many followed."""

import threading
import time
from collections.abc import Callable

#: Lines of one reason within so many seconds, before they are summed up.
LINES, SECONDS = 20, 60.0
#: Reasons that are counted apart; all others are counted together.
REASONS = 100


class StrangerLog:
    """Writes refusals to a log, within a bound of lines and of memory however many there are.

    Parameters
    ----------
    log
        Writes one line.
    """

    def __init__(self, log: Callable[[str], None], lines: int = LINES, seconds: float = SECONDS) -> None:
        self._log, self._lines, self._seconds = log, lines, seconds
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        #: How many were refused so far.
        self.total = 0

    def refused(self, address: str, reason: str) -> None:
        """Log a refusal."""
        with self._lock:
            self.total += 1
            key = reason if reason in self._counts or len(self._counts) < REASONS else "for other reasons"
            now = time.monotonic()
            if now - self._began.get(key, -self._seconds) >= self._seconds:
                self._sum_up(key)
                self._began[key], self._counts[key] = now, 0
            self._counts[key] += 1
            if self._counts[key] <= self._lines:
                self._log(f"refused a connection from {address}: {reason}")

    def close(self) -> None:
        """Log what was only counted."""
        with self._lock:
            for key in list(self._counts):
                self._sum_up(key)
            self._counts.clear()

    def _sum_up(self, key: str) -> None:
        more = self._counts.get(key, 0) - self._lines
        if more > 0:
            self._log(f"refused {more} more connections: {key}")
