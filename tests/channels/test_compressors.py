"""Compressors: their contraction and bias, their bytes, and both ends of a link agreeing to the bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import depositum as dp
from depositum.channels import CHANNELS, Compressed, Compressor, Half, Quantized, RandomK, Sign, TopK, as_channel
from depositum.engines.mixing import MatrixMix
from depositum.randomness import hash_words
from tests.support import equations_imperfect as eq

COMPRESSORS = {
    "top-k": TopK(0.1),
    "random-k": RandomK(0.1),
    "nearest": Quantized(4, 32),
    "ternary": Quantized(2, 16),
    "random": Quantized(4, 32, "random"),
    "byte": Quantized(8, 512, "random"),
    "sign": Sign(32),
    "float16": Half(torch.float16),
    "bfloat16": Half(torch.bfloat16),
}
#: Rows on which a compressor does badly: equal magnitudes, one large number, a geometric sequence; and normal numbers.
D = 75
HARD = {
    "normal": torch.tensor(np.random.default_rng(0).normal(size=D)),
    "flat": torch.ones(D, dtype=torch.float64),
    "spike": torch.cat([torch.ones(1), torch.full((D - 1,), 1 / 14)]).double(),
    "geometric": 0.8 ** torch.arange(D, dtype=torch.float64),
}
DRAWS = 4000


def words_of(rows: int) -> Tensor:
    return hash_words(torch.arange(rows))[:, None]


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("hard", HARD)
def test_a_compressor_contracts_as_it_declares(name: str, hard: str) -> None:
    """E‖C(z) − z‖² ≤ (1 − δ)‖z‖², or of an unbiased one ω‖z‖², by 4000 draws; δ is positive."""
    compressor, z = COMPRESSORS[name], HARD[hard]
    rows = z.expand(DRAWS, D)
    error = (compressor(rows, words_of(DRAWS)) - rows).square().sum(1).mean() / z.square().sum()
    delta = compressor.contraction(D)
    assert 0 < delta <= 1
    if isinstance(compressor, Quantized) and compressor.unbiased:
        assert error <= compressor.variance(D) * 1.02
        scaled = (delta * compressor(rows, words_of(DRAWS)) - rows).square().sum(1).mean() / z.square().sum()
        assert scaled <= (1 - delta) * 1.02
    else:
        assert error <= (1 - delta) * 1.02 + 1e-15
    assert delta <= compressor.typical_contraction(D) <= 1


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_random_rounding_is_unbiased(bits: int) -> None:
    """The mean of 4000 draws is z, within five standard errors, for each number; nearest rounding is not unbiased."""
    z = HARD["normal"].expand(DRAWS, D)
    drawn = Quantized(bits, 32, "random")(z, words_of(DRAWS))
    errors = (drawn.mean(0) - z[0]).abs() / (drawn.std(0) / DRAWS**0.5 + 1e-12)
    assert errors.max() <= 5
    assert (Quantized(bits, 32)(z[:1], words_of(1)) - z[0]).abs().max() > 1e-4


def test_random_positions_are_uniform_and_differ_between_rows() -> None:
    counts = (RandomK(0.2)(torch.ones(DRAWS, D), words_of(DRAWS)) != 0).float()
    assert (counts.sum(1) == 15).all()
    assert (counts.mean(0) - 0.2).abs().max() <= 5 * (0.2 * 0.8 / DRAWS) ** 0.5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_ends_of_a_link_have_the_same_bits(data: st.DataObject) -> None:
    """Decoding what was encoded gives C(z) to the bit, in the bytes announced."""
    compressor: Compressor = data.draw(st.sampled_from(list(COMPRESSORS.values())))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    d, rows = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    z = torch.randn(rows, d, generator=generator, dtype=torch.float64).to(dtype)
    z = z * (torch.rand(rows, d, generator=generator) < data.draw(st.sampled_from([0.0, 0.3, 1.0])))
    words = words_of(rows)
    sent = compressor(z, words)
    message = compressor.encode(sent, words)
    assert message.shape == (rows, compressor.row_bytes(d, dtype))
    assert message.dtype == torch.uint8
    decoded = compressor.decode(message, d, dtype, words)
    assert torch.equal(decoded, sent)


@pytest.mark.parametrize(
    ("channel", "bytes_of_row"),
    [
        ("exact", 4000),
        ("float16", 2000),
        ({"top-k": 0.01}, 10 * (4 + 4)),
        ({"random-k": 0.01}, 10 * 4),
        ({"quantize": {"bits": 4, "bucket": 512}}, 2 * 4 + 500),
        ({"quantize": {"bits": 3, "bucket": 100}}, 10 * 4 + 375),
        ("sign", 2 * 4 + 125),
        ({"noise": 0.1}, 4000),
    ],
)
def test_bytes_of_a_row(channel: object, bytes_of_row: int) -> None:
    """Values, scales and positions that travel, for 1000 numbers in float32."""
    assert as_channel(channel).row_bytes(1000, torch.float32) == bytes_of_row  # type: ignore[arg-type]


@pytest.mark.parametrize("graph", ["ring", "complete", "star"])
@pytest.mark.parametrize("name", ["top-k", "random-k", "nearest", "ternary", "random", "sign", "float16"])
def test_the_default_gain_makes_clients_agree(name: str, graph: str) -> None:
    """Repeated mixings shrink the disagreement twentyfold within 8/(γ (1 − λ)) mixings and some, where
    e^{−γ(1 − λ)} each would be exp(−8); averages stay. With too large a gain the disagreement grows."""
    network = {"ring": dp.ring(10), "complete": dp.complete(8), "star": dp.star(9)}[graph]
    channel, d = Compressed(name, COMPRESSORS[name]), 200
    mix = MatrixMix(network, 1, torch.device("cpu"), torch.float64, channel, d)
    z = torch.tensor(np.random.default_rng(1).normal(size=(network.n, d)))
    start, mean = (z - z.mean(0)).norm(), z.mean(0)
    gain = channel.gain_on(d, 1 - network.lam_min)
    assert 0 < gain <= 1
    for phase in range(round(8 / (gain * network.gap)) + 50):
        mix.begin(torch.tensor(phase))
        z = mix(z)
    assert (z - z.mean(0)).norm() <= 0.05 * start
    assert (z.mean(0) - mean).abs().max() <= 1e-12


def test_gains_follow_the_contraction() -> None:
    """Without compression 1; the less is sent, the smaller; a given gain is used as it is."""
    gains = [as_channel({"top-k": share}).gain_on(1000, 4 / 3) for share in (1.0, 0.1, 0.01, 0.001)]
    assert gains[0] == 1.0
    assert gains == sorted(gains, reverse=True)
    assert as_channel({"top-k": {"share": 0.1, "gain": 0.2}}).gain_on(1000, 4 / 3) == 0.2
    assert as_channel("float16").gain_on(1000, 4 / 3) == 1.0


def test_the_packages_top_k_is_the_references() -> None:
    """x̂ += C(z − x̂), z + γ_c (W − I) x̂ over five mixings of a moving z, as by NumPy."""
    network, d = dp.ring(6), 12
    mix = MatrixMix(
        network, 1, torch.device("cpu"), torch.float64, as_channel({"top-k": {"share": 1 / 12, "gain": 0.3}}), d
    )
    reference = eq.Compressed(network.W, eq.top_k(1), 0.3)
    rng = np.random.default_rng(5)
    for phase in range(5):
        z = rng.normal(size=(6, d))
        mix.begin(torch.tensor(phase))
        assert np.abs(mix(torch.tensor(z)).numpy() - reference.models(z, phase)).max() <= 1e-14


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"top-k": 0.0}, r"^channel.top-k.share: 0.0 given; it must lie in \(0, 1\]"),
        ({"random-k": {"shar": 0.1}}, "^channel.random-k.shar: unknown key; .* did you mean 'share'"),
        ({"top-k": {"gain": 2.0}}, r"^channel.top-k.gain: 2.0 given; it must lie in \(0, 1\], or be 'auto'"),
        ({"quantize": {"bits": 9}}, "^channel.quantize.bits: 9 given; it must be a whole number from 2 to 8"),
        ({"quantize": {"rounding": "up"}}, "^channel.quantize.rounding: 'up' given; it can be 'nearest' or 'random'"),
        ({"sign": 0}, "^channel.sign.bucket: 0 given"),
        ({"noise": {"sigma": 1.0, "snr": 2.0}}, "^channel.noise.sigma: given, and so is snr"),
        ({"noise": -1.0}, "^channel.noise.sigma: -1.0 given; it must be a number ≥ 0"),
        ({"noise": {"sigma": 1.0, "remedy": "sum"}}, "^channel.noise.remedy: 'sum' given; .* did you mean 'sums'"),
    ],
)
def test_channels_that_do_not_exist_are_refused(spec: object, message: str) -> None:
    with pytest.raises(dp.ConfigError, match=message):
        as_channel(spec)  # type: ignore[arg-type]


def test_compressed_channels_are_registered() -> None:
    assert {"top-k", "random-k", "quantize", "sign", "float16", "bfloat16", "noise"} <= set(CHANNELS)
