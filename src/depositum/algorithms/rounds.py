"""Several mixing rounds in one phase: W^K, or its Chebyshev acceleration.

Both are polynomials of W in terms of `mix` alone, so they work with whatever `mix` is: every round is an exchange, and
counted as one; in a local step they are the identity.
"""

from torch import Tensor

from depositum.algorithms.base import Mix


def repeated(mix: Mix, z: Tensor, rounds: int = 1, chebyshev: bool = False) -> Tensor:
    """K mixing rounds of rows `[rows, d]`.

    Plain: W^K z, which contracts disagreement by λ^K. Chebyshev: with m_0 = 1, m_1 = 1/λ, Z_0 = z, Z_1 = Wz,

        m_{k+1} = (2/λ) m_k − m_{k−1}
        Z_{k+1} = (2 m_k/(λ m_{k+1})) W Z_k − (m_{k−1}/m_{k+1}) Z_{k−1},

    which contracts it by 2c^K/(1 + c^{2K}), c = λ/(1 + √(1 − λ²)), and keeps averages. With λ = 0 one round is all.
    """
    if not chebyshev or mix.lam == 0 or rounds == 1:
        for _ in range(rounds):
            z = mix(z)
        return z
    before, now = 1.0, 1.0 / mix.lam
    z_before, z_now = z, mix(z)
    for _ in range(rounds - 1):
        after = 2.0 / mix.lam * now - before
        z_after = (2.0 * now / (mix.lam * after)) * mix(z_now) - (before / after) * z_before
        before, now, z_before, z_now = now, after, z_now, z_after
    return z_now
