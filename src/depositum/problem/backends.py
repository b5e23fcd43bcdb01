"""The ways to make the gradients of all rows, and how the fastest is found: by a stopwatch, on the run's own shapes."""

import time
from collections.abc import Callable, Sequence
from typing import Literal

#: `loop`: one row after another. `channels-last`: the same, with the channels of images side by side in memory, which
#: convolutions and pooling on a CPU can be much faster in. `vmap`: all rows in one batched call.
Backend = Literal["loop", "channels-last", "vmap"]

#: Seconds that a measured pass takes, about; how often each backend is measured; what counts as a tie.
SECONDS, REPEATS, TIE = 0.1, 2, 0.9
#: A backend whose first pass takes so many times the fastest's is not measured again.
HOPELESS = 3.0


def fastest(
    run: Callable[[Backend, int], object],
    candidates: Sequence[Backend],
    rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Backend:
    """The fastest of some backends; the first of them where it is within a tenth of that.

    Parameters
    ----------
    run
        Makes the gradients of so many rows with a backend.
    rows
        How many a run has. Fewer are measured where they take long.
    """

    def seconds(backend: Backend, count: int) -> float:
        began = clock()
        run(backend, count)
        return clock() - began

    seconds("loop", 1)  # the first call of anything is slower
    count = min(rows, max(2, int(SECONDS / max(seconds("loop", 1), 1e-9))))
    best = {backend: seconds(backend, count) for backend in candidates}
    measured = [backend for backend in candidates if best[backend] <= HOPELESS * min(best.values())]
    for _ in range(REPEATS):
        for backend in measured:
            best[backend] = min(best[backend], seconds(backend, count))
    winner = min(best, key=best.__getitem__)
    return candidates[0] if TIE * best[candidates[0]] <= best[winner] else winner
