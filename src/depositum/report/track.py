"""TensorBoard as a callback like any person's own (`pip install depositum[track]`)."""

from pathlib import Path
from typing import Any

from depositum.engines import Callback, Loop
from depositum.errors import ConfigError


class TensorBoard(Callback):
    """Writes every measure of every seed to a TensorBoard folder, which is made when training begins."""

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--tensorboard", "needs the package tensorboard; install depositum[track], or pip install tensorboard"
            ) from None
        self.folder = folder
        self._class: Any = SummaryWriter
        self._writer: Any = None

    def on_start(self, loop: Loop) -> None:
        # What an earlier sitting wrote beyond its last checkpoint is run again, and must not show twice.
        self._writer = self._class(str(self.folder), purge_step=loop.t + 1 if loop.t else 0)

    def on_evaluation(self, loop: Loop, records: list[dict[str, object]]) -> None:
        for record in records:
            for name, value in record.items():
                if isinstance(value, float):
                    self._writer.add_scalar(f"seed {record['seed']}/{name}", value, loop.t)

    def on_end(self, loop: Loop) -> None:
        if self._writer is not None:
            self._writer.close()
