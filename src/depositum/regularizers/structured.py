"""Block norms: of the complete row, of each output unit, and of the singular values of each weight."""

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from depositum.errors import RegularizerError
from depositum.layout import Layout, ParameterSlot
from depositum.regularizers.regularizer import Regularizer, Step, norm, tolerance


@dataclass(frozen=True)
class L2Norm(Regularizer):
    """h(x) = ‖x‖₂ of the complete row: the norm, not its square. It sets a row to zero entirely or not at all."""

    def value(self, x: Tensor) -> Tensor:
        return norm(x)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        return _shrink_norms(z.unsqueeze(-2), tau).squeeze(-2)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        return _norms_distance(x.unsqueeze(-2), v.unsqueeze(-2))


@dataclass(frozen=True)
class PerWeight(Regularizer):
    """A sum over the weights of a model, each reshaped to a matrix `[out, rest]`; a subclass defines h of one matrix.

    The weights are the parameters with two or more dimensions; the others (biases, the scales of normalization layers)
    are not regularized.
    """

    layout: Layout | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def _matrix_value(self, m: Tensor) -> Tensor:
        """H of each matrix: `[..., out, rest]` → `[...]`."""

    @abstractmethod
    def _matrix_prox(self, m: Tensor, tau: Step) -> Tensor:
        """The prox of each matrix `[..., out, rest]`, for a step that broadcasts against `[..., 1]`."""

    @abstractmethod
    def _matrix_distance(self, m: Tensor, v: Tensor) -> Tensor:
        """The distance of v to ∂h(m) for each matrix: `[..., out, rest]` twice → `[...]`."""

    def bind(self, layout: Layout) -> Regularizer:
        if not any(map(_is_weight, layout)):
            raise RegularizerError(
                "regularizer",
                f"{type(self).__name__} acts on parameters with two or more dimensions; there are none among "
                f"{', '.join(layout.names)}",
            )
        bound = copy(self)
        object.__setattr__(bound, "layout", layout)
        return bound

    def value(self, x: Tensor) -> Tensor:
        values = [self._matrix_value(_matrix(x, slot)) for slot in self._checked_layout(x) if _is_weight(slot)]
        return torch.stack(values, -1).sum(-1)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        pieces = [
            self._matrix_prox(_matrix(z, slot), tau).flatten(-2) if _is_weight(slot) else _columns(z, slot)
            for slot in self._checked_layout(z)
        ]
        return torch.cat(pieces, -1)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        distances = [
            self._matrix_distance(_matrix(x, slot), _matrix(v, slot)) if _is_weight(slot) else norm(_columns(v, slot))
            for slot in self._checked_layout(x)
        ]
        return norm(torch.stack(distances, -1))

    def _checked_layout(self, x: Tensor) -> Layout:
        if self.layout is None:
            raise RegularizerError(
                "regularizer", f"{self} acts on the weights of a model but has no layout; call bind(layout)"
            )
        assert x.shape[-1] == self.layout.size, f"rows of {x.shape[-1]} columns, a layout of {self.layout.size}"
        return self.layout


@dataclass(frozen=True)
class GroupLasso(PerWeight):
    """h(x) = Σ ‖x_g‖₂ with a group g for each output unit: the slice of a weight at one index of its first dimension.

    It removes entire neurons or filters; their biases are not regularized.
    """

    def _matrix_value(self, m: Tensor) -> Tensor:
        return norm(m).sum(-1)

    def _matrix_prox(self, m: Tensor, tau: Step) -> Tensor:
        return _shrink_norms(m, tau)

    def _matrix_distance(self, m: Tensor, v: Tensor) -> Tensor:
        return _norms_distance(m, v)


@dataclass(frozen=True)
class NuclearNorm(PerWeight):
    """h(x) = the sum of the singular values of each weight, which promotes low rank.

    Singular values are computed in float64, so that products do not use TF32 and small ones stay accurate. On a GPU the
    solver synchronizes with the device, so that this prox, unlike all others, cannot be part of a CUDA graph.
    """

    def _matrix_value(self, m: Tensor) -> Tensor:
        return _svd(m)[1].sum(-1).to(m.dtype)

    def _matrix_prox(self, m: Tensor, tau: Step) -> Tensor:
        step = (tau if isinstance(tau, Tensor) else m.new_full((), tau)).unsqueeze(-1)
        u, s, vh = _svd(m)
        shrunk = (u * torch.relu(s.unsqueeze(-2) - step)) @ vh
        return torch.where(step > 0, shrunk.to(m.dtype), m)

    def _matrix_distance(self, m: Tensor, v: Tensor) -> Tensor:
        """With m = U S Vᵀ, ∂h(m) is U Vᵀ plus any matrix of spectral norm ≤ 1 on the complement of U and V."""
        u, s, vh = _svd(m)
        zero = tolerance(m.dtype) * s.amax(-1, keepdim=True)
        rank = torch.where(s > zero, 1.0, 0.0 * s)  # 1 for each singular direction of m; NaN stays NaN
        u, vh = u * rank.unsqueeze(-2), vh * rank.unsqueeze(-1)
        v = v.double()
        rest = v - u @ (u.mT @ v)
        rest = rest - (rest @ vh.mT) @ vh
        within = torch.linalg.matrix_norm(v - rest - u @ vh)
        beyond = norm(torch.relu(_svd(rest)[1] - 1))
        return torch.hypot(within, beyond).to(m.dtype)


def _shrink_norms(m: Tensor, tau: Step) -> Tensor:
    """max(1 − τ/‖m_g‖, 0) m_g for each group g of `[..., groups, size]`."""
    norms = norm(m)
    factor = torch.relu(norms - tau) / torch.where(norms == 0, 1.0, norms)
    return m * factor.unsqueeze(-1)


def _norms_distance(x: Tensor, v: Tensor) -> Tensor:
    """Distance of v to ∂ Σ_g ‖x_g‖ (the unit ball if x_g = 0, else x_g/‖x_g‖), for `[..., groups, size]` twice."""
    norms = norm(x)
    at_zero = torch.relu(norm(v) - 1)
    elsewhere = norm(v - x / norms.unsqueeze(-1))
    return norm(torch.where(norms == 0, at_zero, elsewhere))


def _svd(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and Vᵀ of each matrix, in float64; a matrix with non-finite entries has S = NaN.

    The solver rejects an entire batch for one NaN, but a row that diverged must not affect the others.
    """
    finite = m.isfinite().all(-1).all(-1)
    u, s, vh = torch.linalg.svd(torch.where(finite[..., None, None], m, 0.0).double(), full_matrices=False)
    return u, torch.where(finite.unsqueeze(-1), s, torch.nan), vh


def _is_weight(slot: ParameterSlot) -> bool:
    return len(slot.shape) >= 2


def _columns(x: Tensor, slot: ParameterSlot) -> Tensor:
    return x[..., slot.start : slot.stop]


def _matrix(x: Tensor, slot: ParameterSlot) -> Tensor:
    return _columns(x, slot).view(*x.shape[:-1], slot.shape[0], -1)
