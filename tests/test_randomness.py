"""The counter-based hash: its values, its statistics, and what it depends on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from depositum.randomness import (
    TorchGenerators,
    hash_words,
    numpy_generator,
    permuted,
    purpose_code,
    randint,
    seed_for,
    standard_normal,
)
from tests.support.reference_hash import MASK, reference_hash

int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def unsigned(words):
    return [word & MASK for word in words.flatten().tolist()]


def uniform(words):
    """Floats in [0, 1) from the upper 32 bits, for statistics."""
    return ((words.numpy().astype(np.uint64) >> np.uint64(32)).astype(np.float64) + 0.5) / 2**32


def test_splitmix64_published_first_output():
    """splitmix64 seeded with 0 starts with e220a8397b1dcdaf; a wrong constant or shift changes it."""
    assert unsigned(hash_words(0)) == [0xE220A8397B1DCDAF]


@settings(deadline=None, max_examples=300)
@given(st.lists(int64, min_size=1, max_size=6))
def test_hash_equals_arbitrary_precision_arithmetic(words):
    """Wrapping int64 arithmetic with logical shifts equals the unsigned hash; a sign error shows here."""
    as_tensors = [torch.tensor([word], dtype=torch.int64) for word in words]
    assert unsigned(hash_words(*as_tensors)) == [reference_hash(*words)]


def test_words_broadcast_against_each_other():
    """A row vector against a column vector gives the table of all pairs."""
    a, b = torch.arange(5), torch.arange(7) - 3
    table = hash_words(a[:, None], 11, b)
    assert table.shape == (5, 7)
    assert unsigned(table) == [reference_hash(i, 11, j) for i in a.tolist() for j in b.tolist()]


@settings(deadline=None, max_examples=200)
@given(word=int64, high=st.integers(1, 1 << 31))
def test_randint_is_the_scaled_upper_half(word, high):
    """Equal to the exact product, and in range for every `high` up to 2**31: an overflow would leave the range."""
    words = torch.tensor([word], dtype=torch.int64)
    drawn = int(randint(words, torch.tensor([high])))
    assert 0 <= drawn < high
    assert drawn == ((word & MASK) >> 32) * high >> 32


@pytest.mark.parametrize("high", [1, 2, 3, 7, 100, 1437])
def test_randint_is_uniform(high):
    """Chi-square of 200,000 draws; a bias of 1 % in one value of ten would fail."""
    drawn = randint(hash_words(3, torch.arange(200_000)), high)
    counts = torch.bincount(drawn, minlength=high).numpy()
    assert len(counts) == high
    if high > 1:
        assert stats.chisquare(counts).pvalue > 1e-3


def test_every_bit_is_fair():
    """Each of the 64 bits is set half of the time, even for words that differ only in their lowest bits."""
    words = hash_words(1, purpose_code("sample"), torch.arange(100_000)).numpy().astype(np.uint64)
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 50_000) < 5 * np.sqrt(25_000)


@pytest.mark.slow
@pytest.mark.parametrize("axis", range(4), ids=["seed", "client", "iteration", "draw"])
def test_neighbouring_draws_are_uncorrelated_and_distinct(axis):
    """Neighbouring seeds, clients, iterations and draws: no correlation, no repeated value.

    A hash that added its words instead of chaining them would give (seed 1, client 2) and (seed 2, client 1) the same.
    """
    seed, client, iteration, draw = torch.meshgrid(*[torch.arange(40)] * 4, indexing="ij")
    words = hash_words(seed, purpose_code("sample"), client, iteration, draw)
    if axis == 0:
        assert len(torch.unique(words)) == words.numel()
    values = uniform(words)
    near = np.moveaxis(values, axis, 0)
    for lag in (1, 2):
        a, b = near[:-lag].ravel(), near[lag:].ravel()
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(len(a))


def test_pairs_are_jointly_uniform():
    """Two columns of one batch, by a chi-square test on a 16 × 16 grid."""
    words = hash_words(hash_words(0, purpose_code("sample"), 3, torch.arange(100_000))[:, None], torch.arange(2))
    cells = randint(words, 16)
    counts = torch.bincount(cells[:, 0] * 16 + cells[:, 1], minlength=256).numpy()
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_draw_does_not_depend_on_other_draws_of_the_call():
    """Five seeds at once, one alone, in another order, or a slice of the clients: the draws are the same."""
    seeds, clients = torch.tensor([4, 0, 9, 2, 7]), torch.arange(6)
    batched = hash_words(seeds[:, None], purpose_code("sample"), clients)
    for k, seed in enumerate(seeds.tolist()):
        assert torch.equal(hash_words(seed, purpose_code("sample"), clients), batched[k])
        assert torch.equal(hash_words(seed, purpose_code("sample"), clients[2:4]), batched[k, 2:4])
    assert torch.equal(hash_words(seeds.flip(0)[:, None], purpose_code("sample"), clients), batched.flip(0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_and_cpu_draws_are_bit_identical():
    """int64 arithmetic wraps identically on every device."""
    words = torch.arange(-50_000, 50_000)
    assert torch.equal(hash_words(1, words.cuda(), 7).cpu(), hash_words(1, words, 7))
    assert torch.equal(randint(hash_words(1, words.cuda()), 1437).cpu(), randint(hash_words(1, words), 1437))


def test_purposes_have_independent_streams():
    """The same (seed, client, …) for another purpose gives an uncorrelated stream."""
    purposes = ("sample", "init", "partition", "dropout", "noise")
    codes = [purpose_code(purpose) for purpose in purposes]
    assert len(set(codes)) == len(purposes)
    streams = [uniform(hash_words(0, code, torch.arange(20_000))) for code in codes]
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


def test_order_and_number_of_words_matter():
    """(1, 2), (2, 1), (1, 2, 0) and (1,) have four different hashes."""
    assert len({int(hash_words(*words)) for words in ((1, 2), (2, 1), (1, 2, 0), (1,))}) == 4


def test_seeds_for_conventional_generators():
    """63 bits, reproducible, and different for another word or purpose."""
    seeds = [seed_for(s, c, purpose=p) for s in (0, 1, -1) for c in (0, 1) for p in ("init", "partition")]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert seeds[0] == reference_hash(0, 0, purpose_code("init")) & ((1 << 63) - 1)


def test_numpy_generator_is_a_function_of_its_words():
    """Two generators of one purpose agree draw by draw, whatever else is drawn in between; others differ."""
    one, same = numpy_generator(3, purpose="partition"), numpy_generator(3, purpose="partition")
    np.random.default_rng(0).standard_normal(100)
    expected = one.standard_normal(50)
    np.testing.assert_array_equal(same.standard_normal(50), expected)
    for other in (numpy_generator(4, purpose="partition"), numpy_generator(3, purpose="init")):
        assert not np.array_equal(other.standard_normal(50), expected)


def test_torch_generators_are_restored():
    """Seeding and drawing inside the context leave torch's generators unaffected outside, even on an error."""
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    drawn = []

    def draw_and_fail():
        with TorchGenerators(torch.device("cpu")) as generators:
            assert not generators.were_used()
            generators.seed(-(1 << 63) + 1)
            drawn.append(torch.rand(4))
            assert generators.were_used()
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            draw_and_fail()
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.rand(4), expected)


def test_standard_normal_draws_are_normal() -> None:
    """Moments and distribution (Kolmogorov–Smirnov): a uniform or truncated draw would fail."""
    z = standard_normal(hash_words(3, torch.arange(200_000))).numpy()
    assert abs(z.mean()) < 4 / np.sqrt(len(z))
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / len(z))
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 4 / np.sqrt(len(z))


def test_permutations_are_permutations() -> None:
    """Every element once, for every size; fails if two positions collide."""
    for size in [*range(1, 40), 100, 997, 1000, 4096]:
        words = hash_words(torch.arange(20))[:, None]
        found = permuted(words, torch.arange(size), torch.tensor(size))
        assert torch.equal(found.sort(1).values, torch.arange(size).expand(20, -1)), size


def test_permutations_of_different_sizes_in_one_call_are_those_of_each() -> None:
    words, sizes = hash_words(torch.arange(3))[:, None], torch.tensor([[3], [50], [1_000_000]])
    positions = torch.tensor([[0, 2], [49, 7], [999_999, 5]])
    every = permuted(words, positions, sizes)
    for row in range(3):
        assert torch.equal(every[row], permuted(words[row], positions[row], sizes[row]))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
def test_all_permutations_are_equally_likely(size: int) -> None:
    """A χ² test over all size! permutations of 200,000 words: below the quantile of one in 10⁵."""
    words = hash_words(torch.arange(200_000), 77)[:, None]
    found = permuted(words, torch.arange(size), torch.tensor(size))
    codes = (found * size ** torch.arange(size)).sum(1)
    _, counts = codes.unique(return_counts=True)
    cells = math.factorial(size)
    expected = len(words) / cells
    statistic = float(((counts - expected) ** 2 / expected).sum()) + (cells - len(counts)) * expected
    assert statistic < stats.chi2.ppf(1 - 1e-5, cells - 1)


@pytest.mark.parametrize("size", [7, 50, 64, 1000])
def test_pairs_of_positions_are_independent(size: int) -> None:
    """Neighbours and both ends: which element is where, and which of two comes first, by χ² and a sign test."""
    words = hash_words(torch.arange(20_000), size)[:, None]
    places = torch.tensor([0, 1, size // 2, size - 1])
    found = permuted(words, places, torch.tensor(size))
    bins = min(size, 20)
    for k in range(len(places)):
        counts = torch.bincount(found[:, k] * bins // size, minlength=bins).double()
        sizes = torch.bincount(torch.arange(size) * bins // size, minlength=bins).double()
        expected = len(words) * sizes / size
        assert float(((counts - expected) ** 2 / expected).sum()) < stats.chi2.ppf(1 - 1e-5, bins - 1)
    for a, b in ((0, 1), (1, 2), (0, 3)):
        share = float((found[:, a] < found[:, b]).double().mean())
        assert abs(share - 0.5) < 5 * 0.5 / len(words) ** 0.5
        step = (found[:, b] - found[:, a]) % size  # uniform over 1 … size − 1
        counts = torch.bincount(step * bins // size, minlength=bins).double()[1:]
        sizes = torch.bincount(torch.arange(1, size) * bins // size, minlength=bins).double()[1:]
        expected = len(words) * sizes / (size - 1)
        assert float(((counts - expected) ** 2 / expected).sum()) < stats.chi2.ppf(1 - 1e-5, bins - 2)
