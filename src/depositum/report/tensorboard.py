"""TensorBoard as a callback (`pip install depositum[track]`)."""

from pathlib import Path
from typing import Any

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError


class TensorBoard(Callback):
    """Writes every measure to a TensorBoard folder, as one TensorBoard run per seed.

    Parameters
    ----------
    folder
        Where the event files go; created when training starts.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--tensorboard", "needs the package tensorboard; install depositum[track], or pip install tensorboard"
            ) from None
        self.folder = Path(folder)
        self._writer_class: Any = SummaryWriter
        self._writers: dict[int, Any] = {}

    def on_start(self, loop: Loop) -> None:
        # Iterations that a killed run logged beyond its last checkpoint are run again: drop them from the display.
        purge = loop.t + 1 if loop.t else 0
        for seed in loop.snapshot.live:
            self._writers[seed] = self._writer_class(str(self.folder / f"seed-{seed}"), purge_step=purge)

    def on_evaluation(self, loop: Loop, records: list[dict[str, Any]]) -> None:
        for record in records:
            for name, value in record.items():
                if isinstance(value, float):
                    self._writers[record["seed"]].add_scalar(name, value, loop.t)

    def on_end(self, loop: Loop) -> None:
        for writer in self._writers.values():
            writer.close()
