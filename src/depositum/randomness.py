"""Counter-based random numbers: a draw depends on its purpose, never on when it is made.

Every draw is a hash of (seed, purpose, client, iteration, draw): the same on CPU and GPU, in one process or many, for
one seed or five at once, before and after a restart. The hash applies the splitmix64 finaliser once per word, in int64
arithmetic, which wraps identically on every device. Torch's generators cannot do this: their streams depend on the
order and the shapes of calls, and differ between CPU and GPU.
"""

import zlib
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depositum.operators import operator

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BITS = (1 << 64) - 1


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    word &= _BITS
    return word - (1 << 64) if word >> 63 else word


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's `>>` is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


#: The steps of splitmix64's finaliser: bits to shift by, and the factor after it, except for the last.
FINALISER = ((30, _signed(_FIRST)), (27, _signed(_SECOND)), (31, 1))


# One operator, so that a traced program has one operation where the arithmetic below has ten, each of them reading its
# argument twice: a compiler that inlines them would repeat the first ones thousands of times.
@operator("finalise")
def _finalise(z: Tensor) -> Tensor:
    """The finaliser of splitmix64, elementwise."""
    for bits, factor in FINALISER:
        shifted = (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
        z = shifted.bitwise_xor_(z)
        if factor != 1:
            z.mul_(factor)
    return z


@_finalise.register_fake
def _(z: Tensor) -> Tensor:
    return torch.empty_like(z)


@_finalise.register_vmap
def _(info: Any, dims: tuple[int | None], z: Tensor) -> tuple[Tensor, int | None]:
    return _finalise(z), dims[0]


def purpose_code(purpose: str) -> int:
    """A stable integer for the name of a purpose (`"sample"`, `"init"`, …)."""
    return zlib.crc32(purpose.encode())


def hash_words(*words: Tensor | int, device: torch.device | str | None = None) -> Tensor:
    """Hash int64 words, broadcast against each other, into int64 values of 64 random bits.

    >>> int(hash_words(1, 2)) == int(hash_words(1, 2)), int(hash_words(1, 2)) == int(hash_words(2, 1))
    (True, False)
    """
    if device is None:
        device = next((w.device for w in words if isinstance(w, Tensor)), torch.device("cpu"))
    h = torch.zeros((), dtype=torch.int64, device=device)
    for word in words:
        h = _finalise((h ^ word) + _signed(_GOLDEN))
    return h


def randint(words: Tensor, high: Tensor | int) -> Tensor:
    """Integers in `[0, high)` from hashed words, for `high` up to 2**31, by integer arithmetic alone."""
    return (_shift(words, 32) * high) >> 32


def permuted(words: Tensor, positions: Tensor, sizes: Tensor) -> Tensor:
    """The elements at some positions of random permutations of 0 … size − 1, for sizes below 2**31.

    Words that are equal belong to the same permutation. Nothing is stored or sorted: five rounds of bijections. A round
    rotates the range, swaps elements with their mirror images where a bit of a hash says so (the swap-or-not shuffle of
    Hoang, Morris and Rogaway, CRYPTO 2012), then arranges the range as a grid, nearly square, and rotates each column
    by a hash of its number and each row likewise (a Feistel network). With fewer rounds, permutations of eight elements
    would not be equally likely.

    >>> sorted(permuted(torch.tensor(5), torch.arange(7), torch.tensor(7)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    width = sizes.double().sqrt().long()
    height = sizes // width
    z = positions
    for k in range(5):
        key = hash_words(words, k)
        z = (z + randint(key, sizes)) % sizes
        mirrored = sizes - 1 - z
        swapped = hash_words(key, torch.maximum(z, mirrored)) & 1
        z = torch.where(swapped == 1, mirrored, z)
        row, column = z // width, z % width
        row = (row + randint(hash_words(key, 0, column), height)) % height
        column = (column + randint(hash_words(key, 1, row), width)) % width
        z = torch.where(z < width * height, row * width + column, z)
    return z


def standard_normal(words: Tensor) -> Tensor:
    """Standard normal numbers (float64), one per hashed word: Box–Muller on the two halves of the word."""
    radius = ((_shift(words, 32).double() + 0.5) / 2**32).log().mul(-2).sqrt()
    angle = (words & 0xFFFFFFFF).double() * (2 * torch.pi / 2**32)
    return radius * angle.cos()


def seed_for(*words: int, purpose: str) -> int:
    """A 63-bit seed for a conventional generator, for host-side randomness such as initial models and partitions."""
    return int(hash_words(*words, purpose_code(purpose))) & ((1 << 63) - 1)


class TorchGenerators:
    """Context manager around torch's default generators (CPU and one device), from which layers such as dropout draw.

    On exit the generators are restored to their states on entry.
    """

    def __init__(self, device: torch.device) -> None:
        self._all: list[torch.Generator] = [torch.default_generator]
        if device.type == "cuda":
            self._all.append(torch.cuda.default_generators[device.index or 0])

    def __enter__(self) -> "TorchGenerators":
        self._before = [generator.get_state() for generator in self._all]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for generator, state in zip(self._all, self._before, strict=True):
            generator.set_state(state)

    def seed(self, seed: int) -> None:
        """Reseed the generators with a seed of up to 64 bits."""
        for generator in self._all:
            generator.manual_seed(seed)

    def were_used(self) -> bool:
        """Whether anything has been drawn since entry."""
        return any(not torch.equal(g.get_state(), b) for g, b in zip(self._all, self._before, strict=True))


def numpy_generator(*words: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for these words (such as a seed) and this purpose."""
    return np.random.default_rng(seed_for(*words, purpose=purpose))
