"""Where each parameter of a model lies in a row.

A row is one client's parameters, flattened and laid end to end; a `Layout` is the table of their names, shapes and
offsets, and the only thing the rest of the package needs to know of a model to work on rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor, nn

from depositum.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One parameter: its name, its shape, and the columns `start … stop` that it takes in a row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True)
class Layout:
    """The parameters of a row, in order.

    >>> layout = Layout.of(nn.Linear(3, 2))
    >>> [(entry.name, entry.shape) for entry in layout]
    [('weight', (2, 3)), ('bias', (2,))]
    >>> layout.size
    8
    """

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """The trainable parameters of a model; frozen ones (`requires_grad=False`) are not in a row."""
        return cls.from_shapes({k: tuple(p.shape) for k, p in model.named_parameters() if p.requires_grad})

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]]) -> "Layout":
        entries, start = [], 0
        for name, shape in shapes.items():
            entries.append(Entry(name, tuple(shape), start))
            start = entries[-1].stop
        return cls(tuple(entries))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def size(self) -> int:
        """d, the length of a row."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Split `[..., d]` into named views `[..., *shape]`: nothing is copied."""
        lead = rows.shape[:-1]
        return {e.name: rows[..., e.start : e.stop].view((*lead, *e.shape)) for e in self.entries}

    def row(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors of these shapes into one row `[d]`."""
        return torch.cat([parameters[e.name].reshape(-1) for e in self.entries])

    def select(self, patterns: str | Sequence[str]) -> tuple[Tensor, "Layout"]:
        """The columns `[k]` of the parameters whose name matches a pattern, and their own layout.

        A pattern is a shell pattern (`"*.weight"`, `"layers.0.*"`); one that begins with `!` takes names away again,
        from all of them if no other says which to take.
        Patterns that choose nothing are refused, with the names there are.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        drop = [p[1:] for p in wanted if p.startswith("!")]
        keep = [p for p in wanted if not p.startswith("!")] or (["*"] if drop else [])
        chosen = [
            e
            for e in self.entries
            if any(fnmatchcase(e.name, p) for p in keep) and not any(fnmatchcase(e.name, p) for p in drop)
        ]
        if not chosen:
            raise ConfigError("on", f"{patterns!r} matches no parameter; there are {', '.join(self.names)}")
        columns = torch.cat([torch.arange(e.start, e.stop) for e in chosen])
        return columns, Layout.from_shapes({e.name: e.shape for e in chosen})
