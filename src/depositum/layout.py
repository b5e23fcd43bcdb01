"""Positions of a model's parameters in a row.

A row is the concatenation of one client's flattened parameters. A `Layout` is the table of their names, shapes and
offsets, and all that the rest of the package needs to know about a model to work on rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor, nn

from depositum.errors import ConfigError, short_repr


@dataclass(frozen=True)
class ParameterSlot:
    """One parameter: its name, its shape, and the columns `start:stop` that it occupies in a row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of columns."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """One past the last column."""
        return self.start + self.size


@dataclass(frozen=True)
class Layout:
    """The parameters in a row, in order.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> [(slot.name, slot.shape) for slot in layout]
    [('weight', (2, 3)), ('bias', (2,))]
    >>> layout.size
    8
    """

    slots: tuple[ParameterSlot, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """The trainable parameters of a model; frozen ones (`requires_grad=False`) are not in a row."""
        return cls.from_shapes({k: tuple(p.shape) for k, p in model.named_parameters() if p.requires_grad})

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]]) -> "Layout":
        """Parameters of these names and shapes, in this order."""
        slots, start = [], 0
        for name, shape in shapes.items():
            slots.append(ParameterSlot(name, tuple(shape), start))
            start = slots[-1].stop
        return cls(tuple(slots))

    def __iter__(self) -> Iterator[ParameterSlot]:
        return iter(self.slots)

    @property
    def size(self) -> int:
        """d, the length of a row."""
        return self.slots[-1].stop if self.slots else 0

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in order."""
        return [slot.name for slot in self.slots]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Split rows `[..., d]` into named views `[..., *shape]`, without copying."""
        lead = rows.shape[:-1]
        return {s.name: rows[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}

    def row(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Concatenate named tensors of these shapes into one row `[d]`."""
        return torch.cat([parameters[s.name].reshape(-1) for s in self.slots])

    def select(self, patterns: str | Sequence[str]) -> tuple[Tensor, "Layout"]:
        """Return the columns `[k]` of the parameters whose names match, and a layout of these parameters alone.

        A pattern is a shell pattern (`"*.weight"`, `"layers.0.*"`). One that begins with `!` excludes names: from
        those that other patterns select, or from all if there is no other. Patterns that select nothing raise a
        `ConfigError` that lists the names.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        drop = [p[1:] for p in wanted if p.startswith("!")]
        keep = [p for p in wanted if not p.startswith("!")] or (["*"] if drop else [])
        chosen = [
            s
            for s in self.slots
            if any(fnmatchcase(s.name, p) for p in keep) and not any(fnmatchcase(s.name, p) for p in drop)
        ]
        if not chosen:
            raise ConfigError(
                "on", f"{short_repr(patterns)} matches no parameter; the names are {', '.join(self.names)}"
            )
        columns = torch.cat([torch.arange(s.start, s.stop) for s in chosen])
        return columns, Layout.from_shapes({s.name: s.shape for s in chosen})
