"""Stepsizes to try in practice, where the theorem's are too small by orders of magnitude."""

from depositum.theory.setting import Setting

#: αL of the stepsizes to try: the smallest, the first, the largest. In all sweeps of docs/theory.md, the lowest
#: objective was reached with the first or the largest, and αL = 10 was worse than the largest.
PRACTICAL_PRODUCTS = (0.3, 1.0, 3.0)
#: αβρ that none of them exceeds: the prox is defined below 1, and sensitive near it.
LARGEST_EXPANSION = 0.5


def practical_alphas(setting: Setting) -> tuple[float, float, float]:
    """Stepsizes to try: the smallest, the one to start with (1/L), and the largest. Nothing is proven about them.

    Momentum does not shorten them: ν = γν + (1 − γ)g is an average of gradients, as long as a gradient.
    """
    modulus = setting.beta * setting.rho
    limit = LARGEST_EXPANSION / modulus if modulus > 0 else float("inf")
    low, start, high = (min(product / setting.L, limit) for product in PRACTICAL_PRODUCTS)
    return low, start, high
