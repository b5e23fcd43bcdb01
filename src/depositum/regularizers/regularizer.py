"""The base class of regularizers, h of the objective φ = f + βh, which act on rows.

A regularizer defines its value, its proximal operator, the distance of a vector to its subdifferential, and its modulus
of weak convexity ρ (h + ρ/2‖·‖² is convex, as defined in the paper).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from depositum.errors import RegularizerError, is_number, short_repr
from depositum.layout import Layout

if TYPE_CHECKING:
    from depositum.regularizers.groups import Group, Groups

#: The prox step τ = αβ: a number, or a tensor that broadcasts against `[..., 1]` (0-dim, or one step per row).
Step = float | Tensor


class Regularizer(ABC):
    """h: ℝᵈ → ℝ ∪ {∞}, applied to each row of `[..., d]` separately.

    A regularizer is a small frozen dataclass. One that depends on the positions of parameters in a row receives the
    layout through `bind`, which returns a bound copy; `bind` of all others returns the regularizer itself. Callers bind
    every regularizer once, before use.
    """

    @property
    def rho(self) -> float:
        """ρ ≥ 0, the smallest number for which h + ρ/2‖·‖² is convex."""
        return 0.0

    @property
    def convex(self) -> bool:
        """Whether h is convex (ρ = 0)."""
        return self.rho == 0.0

    @property
    def separable(self) -> bool:
        """Whether h is a sum of functions of single coordinates."""
        return False

    @property
    def indicator(self) -> bool:
        """Whether h is 0 on a set and ∞ outside, so that its prox is the projection for every step."""
        return False

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """The value h(x) of each row: `[..., d]` → `[...]`."""

    def prox(self, z: Tensor, tau: Step) -> Tensor:
        """P_τ(z) = argmin_p h(p) + ‖p − z‖²/(2τ) of each row: `[..., d]` → `[..., d]`.

        In the paper's notation this is prox_h^{1/τ}; the prox of βh with stepsize α has τ = αβ. A number is validated
        (see `check_step`); a tensor is not, since that would synchronize with the device: validate its largest value
        on the host beforehand.
        """
        if isinstance(tau, Tensor):
            return self._prox(z, tau.to(z.device, z.dtype))
        self.check_step(tau)
        return self._prox(z, tau)

    @abstractmethod
    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        """The formula of `prox`, for a valid step; at τ = 0 it returns z (or the projection of z)."""

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        """Distance of each row of v to the limiting subdifferential ∂h at that row of x: `[..., d]` twice → `[...]`.

        It is ∞ where h(x) = ∞. It is zero for v = −∇f(x)/β if x is stationary for φ = f + βh, and zero for
        v = (z − x)/τ if x = P_τ(z). A kink at 0 applies where x is exactly 0, as after a prox. Training does not use
        this distance: user-defined regularizers may omit it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define subdifferential_distance")

    def check_step(self, tau: float, key: str = "prox") -> None:
        """Reject a step for which the prox is not defined: τ must be finite, τ ≥ 0 and τρ < 1.

        >>> from depositum.regularizers import MCP
        >>> MCP(lam=1.0, theta=5.0).check_step(6.0, "alpha")
        Traceback (most recent call last):
        depositum.errors.RegularizerError: alpha: the prox needs tau * rho < 1; tau = alpha * beta = 6.0 and \
rho = 0.2 of MCP(lam=1.0, theta=5.0) give 1.2
        """
        if not (isfinite(tau) and tau >= 0):
            raise RegularizerError(
                key, f"tau = {short_repr(tau)} given; a prox step tau = alpha * beta must be finite and >= 0"
            )
        # rho is often a rounded reciprocal: the margin rejects a product that should be 1 but is rounded below it.
        if tau * self.rho >= 1 - 1e-12:
            raise RegularizerError(
                key,
                f"the prox needs tau * rho < 1; tau = alpha * beta = {tau!r} and rho = {self.rho:.6g} of {self} "
                f"give {tau * self.rho:.6g}",
            )

    def bind(self, layout: Layout) -> "Regularizer":
        """The regularizer for rows of this layout; itself if it does not depend on the layout."""
        return self

    def on(self, patterns: str | Sequence[str]) -> "Group":
        """H of the parameters whose names match (see `Layout.select`); the others are not regularized."""
        from depositum.regularizers.groups import Group  # which imports this module

        return Group(self, patterns)

    def scaled(self, scale: float) -> "Regularizer":
        """The regularizer `scale`·h."""
        from depositum.regularizers.groups import Group

        return Group(self, scale=scale)

    def __add__(self, other: "Regularizer") -> "Groups":
        """The sum of two regularizers on disjoint groups of parameters."""
        from depositum.regularizers.groups import Groups

        return Groups((self, other))


def norm(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Euclidean norm along the last dimension: `[..., d]` → `[...]`, summed in `dtype`."""
    result: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
    return result


def tolerance(dtype: torch.dtype) -> float:
    """Relative tolerance for rounding errors when a value is compared with a bound.

    1e-9, but at least 1024 ε of the dtype (1.2e-4 in float32), the largest error of a weighted average of a thousand
    rows that are summed one after another.
    """
    return max(1e-9, 1024 * torch.finfo(dtype).eps)


def check_parameter(owner: Regularizer, name: str, *, above: float = -inf, at_least: float = -inf) -> None:
    """Reject a parameter of a regularizer that is not a finite number in its range."""
    value = getattr(owner, name)
    if not (is_number(value) and isfinite(value) and value > above and value >= at_least):
        bound = f" > {above:g}" if above > -inf else f" >= {at_least:g}" if at_least > -inf else ""
        raise RegularizerError(name, f"{short_repr(value)} given; {type(owner).__name__} needs a finite {name}{bound}")
