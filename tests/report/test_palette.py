"""The colours of curves: distinguishable with each form of colour blindness, and in greyscale."""

import itertools

import numpy as np
import pytest

from depositum.experiments.figures import MARKERS
from depositum.report.curves import COLOURS, DASHES

#: What is seen with a form of colour blindness, of linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
SEEN = {
    "full colour vision": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
#: Linear sRGB to XYZ of the white D65.
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    """The linear RGB `[3]` of `#RRGGBB`."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* `[3]` of linear RGB."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_conversion() -> None:
    """Known values: white, black, and pure red."""
    np.testing.assert_allclose(lab(linear("#FFFFFF")), [100, 0, 0], atol=0.02)
    np.testing.assert_allclose(lab(linear("#000000")), [0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(lab(linear("#FF0000")), [53.24, 80.09, 67.20], atol=0.02)


@pytest.mark.parametrize("vision", list(SEEN))
def test_any_two_of_the_first_eight_colours_differ(vision: str) -> None:
    """By at least 20 in L*a*b*, about ten times a just noticeable difference."""
    seen = [lab(SEEN[vision] @ linear(colour)) for colour in COLOURS[:8]]
    distances = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(range(8), 2)}
    assert min(distances.values()) >= 20, min(distances, key=lambda pair: distances[pair])


def test_the_first_five_colours_differ_in_greyscale() -> None:
    """By at least 10 in lightness L*, which is what a printer without colours keeps; and all are visible on white."""
    lightness = sorted(lab(linear(colour))[0] for colour in COLOURS[:5])
    assert min(b - a for a, b in itertools.pairwise(lightness)) >= 10
    assert max(lab(linear(colour))[0] for colour in COLOURS) <= 76


def test_curves_of_similar_lightness_have_another_dash_pattern_or_marker() -> None:
    """So that any of eight curves is known without its colour."""
    lightness = [lab(linear(colour))[0] for colour in COLOURS[:8]]
    for a, b in itertools.combinations(range(8), 2):
        same_dash = DASHES[a % len(DASHES)] == DASHES[b % len(DASHES)]
        assert abs(lightness[a] - lightness[b]) >= 10 or not same_dash
    assert len(set(MARKERS)) == 8
