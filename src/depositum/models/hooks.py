"""Optional methods of a model, which the package calls if a model defines them.

Besides those below, `depositum.problem` uses `forward_rows(parameters, inputs)`, the outputs of all rows in one pass,
and `frozen_follows_precision`, whether frozen weights may be stored in the precision of the model's passes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


def prepare_samples(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The samples in the form that the model takes: `model.prepare_samples(inputs, targets)`, if it is defined.

    It is called once, when the data is loaded, so that no step pays for it. It may raise a `ConfigError` for data that
    the model cannot take.
    """
    prepare = getattr(model, "prepare_samples", None)
    return (inputs, targets) if prepare is None else prepare(inputs, targets)


def frozen_digest(model: nn.Module) -> str:
    """`model.frozen_digest()`, if it is defined: a digest of frozen weights that all processes must have in common."""
    digest = getattr(model, "frozen_digest", None)
    return "" if digest is None else digest()


@runtime_checkable
class ExportableModel(Protocol):
    """A model that a run saves in a format of its own instead of a state dictionary."""

    #: Name of the folder inside the run folder.
    export_folder: str
    #: Whether each client's model is exported too, into `clients/N/` inside that folder.
    exports_clients: bool

    def export(
        self,
        folder: Path,
        row: Tensor,
        *,
        iterations: int,
        perplexities: Mapping[str, tuple[float, float]],
        settings: str,
    ) -> None:
        """Write the averaged model, whose parameters are `row [d]`, into an existing folder.

        Parameters
        ----------
        iterations
            The number of iterations that the model was trained for.
        perplexities
            At the start and at the end of the run: of all test data and of each category. Empty if unknown.
        settings
            The run's configuration, as TOML.
        """
        ...

    def export_client(self, folder: Path, row: Tensor) -> None:
        """Write one client's model, whose parameters are `row [d]`, into an existing folder."""
        ...
