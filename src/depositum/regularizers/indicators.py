"""Constraints: h is 0 on a convex set and ∞ outside, its prox is the projection and ∂h the normal cone.

An average of rows in a convex set is in the set only up to rounding. A row therefore counts as inside, or as on the
boundary, within `tolerance` relative to the size of the set, so that φ stays finite after mixing. A bound at zero
(signs) is attained at exactly zero only: averages of zeros are zeros, and small weights are not.
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from depositum.errors import RegularizerError, short_repr
from depositum.regularizers.regularizer import Regularizer, Step, check_parameter, norm, tolerance
from depositum.regularizers.separable import Separable


def _zero_where(inside: Tensor, dtype: torch.dtype) -> Tensor:
    """0 inside and ∞ outside; NaN counts as outside, since comparisons with it are false."""
    return torch.where(inside, 0.0, inf).to(dtype)


class Indicator(Regularizer):
    """The indicator of a convex set."""

    indicator = True

    def _or_outside(self, x: Tensor, distance: Tensor) -> Tensor:
        """The distance to the normal cone at x, or ∞ outside the set, where the cone is empty."""
        return torch.where(self.value(x) == 0, distance, inf).to(x.dtype)


@dataclass(frozen=True)
class Box(Separable, Indicator):
    """low ≤ x_j ≤ high for every coordinate."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_parameter(self, "low")
        check_parameter(self, "high")
        if self.low > self.high:
            raise RegularizerError(
                "low", f"{short_repr(self.low)} given with high = {short_repr(self.high)}; Box needs low <= high"
            )

    def _slack(self, x: Tensor) -> float:
        return tolerance(x.dtype) * (max(abs(self.low), abs(self.high)) or 1.0)

    def _inside(self, x: Tensor) -> Tensor:
        slack = self._slack(x)
        return (x >= self.low - slack) & (x <= self.high + slack)

    def terms(self, x: Tensor) -> Tensor:
        return _zero_where(self._inside(x), x.dtype)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return z.clamp(self.low, self.high)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        near = tolerance(x.dtype)
        low = torch.where(x <= self.low + near * abs(self.low), -inf, 0.0)
        high = torch.where(x >= self.high - near * abs(self.high), inf, 0.0)
        inside = self._inside(x)
        return torch.where(inside, low, inf).to(x.dtype), torch.where(inside, high, -inf).to(x.dtype)


@dataclass(frozen=True)
class Nonnegative(Separable, Indicator):
    """x_j ≥ 0 for every coordinate; the tolerance is absolute, as the set is unbounded."""

    def terms(self, x: Tensor) -> Tensor:
        return _zero_where(x >= -tolerance(x.dtype), x.dtype)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return z.clamp(min=0)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inside = x >= -tolerance(x.dtype)
        low = torch.where(x <= 0, -inf, 0.0)
        return torch.where(inside, low, inf).to(x.dtype), torch.where(inside, 0.0, -inf).to(x.dtype)


@dataclass(frozen=True)
class L2Ball(Indicator):
    """‖x‖₂ ≤ radius for the complete row."""

    radius: float

    def __post_init__(self) -> None:
        check_parameter(self, "radius", above=0)

    def value(self, x: Tensor) -> Tensor:
        return _zero_where(_norm(x) <= self.radius * (1 + tolerance(x.dtype)), x.dtype)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        scale = self.radius / _norm(z).clamp(min=self.radius)
        return z * scale.unsqueeze(-1).to(z.dtype)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        # On the boundary the normal cone is the ray {c x : c ≥ 0}.
        inner = (x * v).sum(-1, keepdim=True, dtype=torch.float64)
        c = inner.relu() / x.square().sum(-1, keepdim=True, dtype=torch.float64)
        on_boundary = _norm(x) >= self.radius * (1 - tolerance(x.dtype))
        return self._or_outside(x, torch.where(on_boundary, _norm(v - c * x), _norm(v)))


@dataclass(frozen=True)
class L1Ball(Indicator):
    """‖x‖₁ ≤ radius for the complete row."""

    radius: float

    def __post_init__(self) -> None:
        check_parameter(self, "radius", above=0)

    def value(self, x: Tensor) -> Tensor:
        return _zero_where(_total(x.abs()) <= self.radius * (1 + tolerance(x.dtype)), x.dtype)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        inside = _total(z.abs()) <= self.radius
        return torch.where(inside.unsqueeze(-1), z, torch.sign(z) * project_on_simplex(z.abs(), self.radius))

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        # On the boundary the normal cone is {u : u_j = c sign(x_j) where x_j ≠ 0, |u_j| ≤ c elsewhere, c ≥ 0}.
        support = x != 0
        outward = torch.where(support, torch.sign(x) * v, v.abs())
        distance = _level_distance(outward, support, smallest=0.0)
        on_boundary = _total(x.abs()) >= self.radius * (1 - tolerance(x.dtype))
        return self._or_outside(x, torch.where(on_boundary, distance, _norm(v)))


@dataclass(frozen=True)
class Simplex(Indicator):
    """x_j ≥ 0 and Σx_j = total for the complete row.

    >>> Simplex().prox(torch.tensor([1.0, 0.8, -2.0]), 1.0)
    tensor([0.6000, 0.4000, 0.0000])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        check_parameter(self, "total", above=0)

    def value(self, x: Tensor) -> Tensor:
        slack = tolerance(x.dtype) * self.total
        return _zero_where((x >= -slack).all(-1) & ((_total(x) - self.total).abs() <= slack), x.dtype)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return project_on_simplex(z, self.total)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        # The normal cone is {u : u_j = c where x_j > 0, u_j ≤ c elsewhere, c any number}. Projecting a row whose sum is
        # rounded below `total` raises its zeros by a rounding error, which does not make them positive.
        rounding = 8 * torch.finfo(x.dtype).eps * x.amax(-1, keepdim=True)
        return self._or_outside(x, _level_distance(v, x > rounding, smallest=-inf))


def project_on_simplex(z: Tensor, total: float) -> Tensor:
    """The projection of each row of `[..., d]` onto {x ≥ 0, Σx = total}: max(z − θ, 0), with θ found by sorting.

    Computed in float64, relative to the largest coordinate: those that stay positive are within `total` of it, so that
    no digits cancel, however large z is.
    """
    u = z.double()
    u = u - u.amax(-1, keepdim=True)
    descending = u.sort(-1, descending=True).values
    theta = (descending.cumsum(-1) - total) / torch.arange(1, z.shape[-1] + 1, device=z.device)
    count = (descending > theta).sum(-1, keepdim=True).clamp(min=1)  # 0 only for a row with NaN
    return torch.relu(u - theta.gather(-1, count - 1)).to(z.dtype)


def _level_distance(v: Tensor, support: Tensor, smallest: float) -> Tensor:
    """Min ‖v − u‖ over c ≥ `smallest`, u_j = c on the support and u_j ≤ c elsewhere: `[..., d]` → `[...]`.

    The optimal c is the mean of v over the support and the other coordinates that exceed this mean; these are the
    largest ones, so that a sorted cumulative sum finds them.
    """
    v = v.double()
    size = support.sum(-1, keepdim=True)
    start = torch.where(support, v, 0.0).sum(-1, keepdim=True)
    others = v.masked_fill(support, -inf).sort(-1, descending=True).values
    above = others.masked_fill(others == -inf, 0.0).cumsum(-1)
    c = (start + above) / (size + torch.arange(1, v.shape[-1] + 1, device=v.device))
    count = (others > c).sum(-1, keepdim=True)
    c = torch.where(count > 0, c.gather(-1, (count - 1).clamp(min=0)), start / size).clamp(min=smallest)
    return norm(torch.where(support, v - c, torch.relu(v - c)))


def _norm(x: Tensor) -> Tensor:
    """Euclidean norm of each row, in float64."""
    return norm(x, torch.float64)


def _total(x: Tensor) -> Tensor:
    """Sum of each row, in float64."""
    return x.sum(-1, dtype=torch.float64)
