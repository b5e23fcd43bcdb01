"""The hash of `depositum.randomness` in Python integers, as a reference."""

MASK = (1 << 64) - 1


def reference_hash(*words: int) -> int:
    """Apply the finaliser of splitmix64 once per word, modulo 2^64."""
    h = 0
    for word in words:
        z = ((h ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        h = z ^ (z >> 31)
    return h
