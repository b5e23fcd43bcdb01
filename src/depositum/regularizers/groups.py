"""Regularizers of some of the parameters, and their sums over disjoint groups of parameters.

h = Σ_g c_g h_g(x_g) decomposes by groups: its prox applies the prox of each h_g to the columns of the group, with step
c_g τ, and its modulus is the largest c_g ρ_g.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from depositum.errors import ConfigError, RegularizerError, short_repr
from depositum.layout import Layout
from depositum.regularizers.regularizer import Regularizer, Step, check_parameter, norm
from depositum.regularizers.separable import Separable


class ColumnSelection:
    """Some columns of a row, as indices `[k]` and as a mask `[d]`, cached on every device where they are used."""

    def __init__(self, index: Tensor, size: int) -> None:
        self._mask = torch.zeros(size, dtype=torch.bool).index_fill(0, index, True)
        self._index = index
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Indices and mask on the device of `like`."""
        if like.device not in self._copies:
            self._copies[like.device] = self._index.to(like.device), self._mask.to(like.device)
        return self._copies[like.device]


@dataclass(frozen=True)
class Group(Regularizer):
    """scale · h of the parameters whose names match; the others are not regularized.

    Parameters
    ----------
    regularizer
        h, of the concatenation of the selected parameters.
    patterns
        Shell patterns of names, with `!` for exclusion (see `Layout.select`); `None` for the complete row.
    scale
        The factor c > 0.

    >>> layout = Layout.from_shapes({"weight": (1, 2), "bias": (1,)})
    >>> from depositum.regularizers import L1
    >>> L1().scaled(2.0).on("weight").bind(layout).prox(torch.tensor([5.0, -5.0, 5.0]), 1.0)
    tensor([ 3., -3.,  5.])
    """

    regularizer: Regularizer
    patterns: str | Sequence[str] | None = None
    scale: float = 1.0
    selected: Layout | None = field(default=None, init=False, repr=False)
    columns: ColumnSelection | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_parameter(self, "scale", above=0)
        if self.patterns is None:
            return
        patterns = self.patterns
        if not isinstance(patterns, str):
            patterns = tuple(patterns) if isinstance(patterns, list | tuple) else ()
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise RegularizerError(
                "on", f"{short_repr(self.patterns)} given; it must be one or more patterns of parameter names"
            )
        object.__setattr__(self, "patterns", patterns)

    @property
    def rho(self) -> float:
        return self.scale * self.regularizer.rho

    @property
    def separable(self) -> bool:
        return self.regularizer.separable

    @property
    def indicator(self) -> bool:
        return self.regularizer.indicator

    def bind(self, layout: Layout) -> "Group":
        columns, selected = None, layout
        if self.patterns is not None:
            try:
                index, selected = layout.select(self.patterns)
            except ConfigError as error:
                raise RegularizerError(error.key, error.problem) from None
            columns = ColumnSelection(index, layout.size)
        bound = copy(self)
        object.__setattr__(bound, "regularizer", self.regularizer.bind(selected))
        object.__setattr__(bound, "selected", selected)
        object.__setattr__(bound, "columns", columns)
        return bound

    def on(self, patterns: str | Sequence[str]) -> "Group":
        return super().on(patterns) if self.patterns is not None else Group(self.regularizer, patterns, self.scale)

    def scaled(self, scale: float) -> "Group":
        return Group(self.regularizer, self.patterns, self.scale * scale)

    def value(self, x: Tensor) -> Tensor:
        return self.scale * self.regularizer.value(self._select(x))

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        step = self.scale * tau
        if self.patterns is None:
            return self.regularizer._prox(z, step)
        index, mask = self._columns(z)
        if isinstance(self.regularizer, Separable):  # elementwise: cheaper on all columns than gather and scatter
            return torch.where(mask, self.regularizer._prox(z, step), z)
        return z.index_copy(-1, index, self.regularizer._prox(z.index_select(-1, index), step))

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        return torch.hypot(self.distance_within(x, v), norm(self.zero_within(v)))

    def distance_within(self, x: Tensor, v: Tensor) -> Tensor:
        """`subdifferential_distance` restricted to the columns of the group."""
        return self.scale * self.regularizer.subdifferential_distance(self._select(x), self._select(v) / self.scale)

    def zero_within(self, v: Tensor) -> Tensor:
        """The rows v with the columns of the group set to zero."""
        return torch.zeros_like(v) if self.patterns is None else v.index_fill(-1, self._columns(v)[0], 0)

    def _select(self, x: Tensor) -> Tensor:
        return x if self.patterns is None else x.index_select(-1, self._columns(x)[0])

    def _columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.columns is None:
            raise RegularizerError("regularizer", f"{self} selects parameters but has no layout; call bind(layout)")
        index, mask = self.columns(x)
        assert x.shape[-1] == mask.shape[-1], f"rows of {x.shape[-1]} columns, a layout of {mask.shape[-1]}"
        return index, mask


@dataclass(frozen=True, init=False)
class Groups(Regularizer):
    """A sum over disjoint groups of parameters; parameters in none of them are not regularized.

    >>> from depositum.regularizers import L1, Nonnegative
    >>> h = L1().on("weight") + Nonnegative().on("bias")
    >>> h = h.bind(Layout.from_shapes({"weight": (1, 2), "bias": (1,)}))
    >>> h.prox(torch.tensor([5.0, -5.0, -5.0]), 1.0)
    tensor([ 4., -4.,  0.])
    """

    groups: tuple[Group, ...]
    bound: bool = field(default=False, init=False, repr=False)

    def __init__(self, regularizers: Sequence[Regularizer]) -> None:
        groups: list[Group] = []
        for h in regularizers:
            groups.extend(h.groups if isinstance(h, Groups) else [h if isinstance(h, Group) else Group(h)])
        if not groups:
            raise RegularizerError("regularizer", "a sum of no regularizers given; use Zero() for none")
        object.__setattr__(self, "groups", tuple(groups))
        object.__setattr__(self, "bound", False)

    @property
    def rho(self) -> float:
        return max(group.rho for group in self.groups)

    @property
    def separable(self) -> bool:
        return all(group.separable for group in self.groups)

    @property
    def indicator(self) -> bool:
        return all(group.indicator for group in self.groups)

    def bind(self, layout: Layout) -> "Groups":
        bound = Groups([group.bind(layout) for group in self.groups])
        owner: dict[str, Group] = {}
        for group in bound.groups:
            assert group.selected is not None
            for name in group.selected.names:
                if name in owner:
                    raise RegularizerError(
                        "on", f"parameter {name!r} is in both {owner[name]} and {group}; the groups must be disjoint"
                    )
                owner[name] = group
        object.__setattr__(bound, "bound", True)
        return bound

    def scaled(self, scale: float) -> "Groups":
        return Groups([group.scaled(scale) for group in self.groups])

    def value(self, x: Tensor) -> Tensor:
        return torch.stack([group.value(x) for group in self._disjoint()], -1).sum(-1)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        for group in self._disjoint():  # each changes only the columns of its group
            z = group._prox(z, tau)
        return z

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        distances = [group.distance_within(x, v) for group in self._disjoint()]
        for group in self.groups:
            v = group.zero_within(v)
        return norm(torch.stack([*distances, norm(v)], -1))

    def _disjoint(self) -> tuple[Group, ...]:
        if not self.bound:
            raise RegularizerError("regularizer", f"{self} selects parameters but has no layout; call bind(layout)")
        return self.groups
