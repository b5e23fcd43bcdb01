"""The paper's weakly convex penalties, MCP and SCAD.

Both grow like λ|x| near 0 and become constant, so that large coordinates are not shrunk. λ (`lam`) is part of h, and β
multiplies h: β·h with λ = 1 and h with λ = β are different functions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from depositum.regularizers.regularizer import Step, check_parameter
from depositum.regularizers.separable import Separable, even_interval, soft_threshold


@dataclass(frozen=True)
class MCP(Separable):
    """The minimax concave penalty: λ|x| − x²/(2θ) for |x| ≤ θλ, and θλ²/2 beyond; ρ = 1/θ.

    Parameters
    ----------
    lam
        λ > 0, the slope at 0.
    theta
        θ > 0: the penalty is constant for |x| ≥ θλ. The prox needs τ < θ.

    >>> MCP(lam=1.0, theta=5.0).prox(torch.tensor([0.5, 3.0, 7.0]), 1.0)
    tensor([0.0000, 2.5000, 7.0000])
    """

    lam: float = 1.0
    theta: float = 5.0

    def __post_init__(self) -> None:
        check_parameter(self, "lam", above=0)
        check_parameter(self, "theta", above=0)

    @property
    def rho(self) -> float:
        return 1 / self.theta

    def terms(self, x: Tensor) -> Tensor:
        size = x.abs().clamp(max=self.theta * self.lam)  # constant beyond
        return self.lam * size - size.square() / (2 * self.theta)

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        shrunk = soft_threshold(z, tau * self.lam) / (1 - tau / self.theta)
        return torch.where(z.abs() <= self.theta * self.lam, shrunk, z)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return even_interval(x, torch.relu(self.lam - x.abs() / self.theta))


@dataclass(frozen=True)
class SCAD(Separable):
    """The smoothly clipped absolute deviation; ρ = 1/(a − 1).

    λ|x| for |x| ≤ λ, then (2aλ|x| − x² − λ²)/(2(a − 1)) for |x| ≤ aλ, and (a + 1)λ²/2 beyond.

    Parameters
    ----------
    lam
        λ > 0, the slope at 0 and the point from which it decreases.
    a
        a > 2: the penalty is constant for |x| ≥ aλ. The prox needs τ < a − 1.

    >>> SCAD(lam=1.0, a=3.0).prox(torch.tensor([1.5, 2.5, 4.0]), 0.5)
    tensor([1.0000, 2.3333, 4.0000])
    """

    lam: float = 1e-4
    a: float = 3.7

    def __post_init__(self) -> None:
        check_parameter(self, "lam", above=0)
        check_parameter(self, "a", above=2)

    @property
    def rho(self) -> float:
        return 1 / (self.a - 1)

    def terms(self, x: Tensor) -> Tensor:
        lam, a = self.lam, self.a
        size = x.abs().clamp(max=a * lam)  # constant beyond
        return torch.where(size <= lam, lam * size, (2 * a * lam * size - size.square() - lam**2) / (2 * (a - 1)))

    def _prox(self, z: Tensor, tau: Step) -> Tensor:
        lam, a = self.lam, self.a
        size = z.abs()
        # ((a − 1) z − sign(z) τaλ)/(a − 1 − τ), written as a change of z so that it is exactly z at |z| = aλ and τ = 0.
        shrunk = z + tau * (z - torch.sign(z) * (a * lam)) / (a - 1 - tau)
        beyond_lam = torch.where(size <= a * lam, shrunk, z)
        return torch.where(size <= (1 + tau) * lam, soft_threshold(z, tau * lam), beyond_lam)

    def interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return even_interval(x, ((self.a * self.lam - x.abs()) / (self.a - 1)).clamp(0, self.lam))
