"""Several mixing rounds in one phase: W^K, or its Chebyshev acceleration.

Both are polynomials in W that use `mix` only, so they work with any `mix`: every round is an exchange and is counted
as one; in a local step both are the identity.
"""

from depositum.algorithms.interface import Mix, Tensor


def mix_rounds(mix: Mix, z: Tensor, rounds: int = 1, chebyshev: bool = False) -> Tensor:
    """Mix rows `[rows, d]` K times.

    Plain: W^K z, which contracts disagreement by λ^K. Chebyshev: with m_0 = 1, m_1 = 1/λ, Z_0 = z, Z_1 = Wz,

        m_{k+1} = (2/λ) m_k − m_{k−1}
        Z_{k+1} = (2 m_k/(λ m_{k+1})) W Z_k − (m_{k−1}/m_{k+1}) Z_{k−1},

    which contracts it by 2c^K/(1 + c^{2K}), c = λ/(1 + √(1 − λ²)), and preserves averages. With λ = 0 one round reaches
    consensus, and acceleration is not needed.
    """
    if not chebyshev or mix.lam == 0 or rounds == 1:
        for _ in range(rounds):
            z = mix(z)
        return z
    m_previous, m = 1.0, 1.0 / mix.lam
    z_previous, z = z, mix(z)
    for _ in range(rounds - 1):
        m_next = 2.0 / mix.lam * m - m_previous
        z_next = (2.0 * m / (mix.lam * m_next)) * mix(z) - (m_previous / m_next) * z_previous
        m_previous, m, z_previous, z = m, m_next, z, z_next
    return z
