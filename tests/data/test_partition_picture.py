"""The picture of a partition, by the rectangles it is made of."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from depositum.data import draw_partition


def test_segments_are_shares_of_classes_and_each_colour_adds_up_to_one():
    """Breaks if a bar shows counts or shares within a client, segments overlap, or a class loses its colour."""
    targets = np.array([0, 0, 0, 0, 2, 2])
    ax = Figure().subplots()
    draw_partition([np.array([0, 4]), np.array([1, 2, 3, 5])], targets, ax)
    heights = [[bar.get_height() for bar in container] for container in ax.containers]
    bottoms = [[bar.get_y() for bar in container] for container in ax.containers]
    assert heights == [[0.25, 0.75], [0.5, 0.5]]
    assert bottoms == [[0, 0], [0.25, 0.75]]
    assert ax.get_legend_handles_labels()[1] == ["0", "2"]
    assert len({container[0].get_facecolor() for container in ax.containers}) == 2


@pytest.mark.parametrize("classes", [2, 10, 11, 60])
def test_every_class_has_a_colour_of_its_own(classes):
    targets = np.arange(classes)
    ax = Figure().subplots()
    draw_partition([targets], targets, ax)
    assert len({container[0].get_facecolor() for container in ax.containers}) == classes
    assert sum(container[0].get_height() for container in ax.containers) == pytest.approx(classes)
