"""The figure of masks and entropy maps: colours that differ, numbers where their classes are, nothing covered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from federation.tasks.segmentation import Segmentation
from sim.reports.figures.segmentation import BACKGROUND, UNLABELLED, class_colours, segmentation_figure
from sim.results.artifacts import SegmentedImages
from tests.sim.reports.test_plots import overlapping

TASK = Segmentation(background=0)
LABELS = ("background", *(f"class {k}" for k in range(1, 21)))


def example(height: int = 60, width: int = 80) -> SegmentedImages:
    """Two images, with a large square of class 2 and a speck of class 7, which nobody predicts."""
    truth = torch.zeros(2, height, width, dtype=torch.int16)
    truth[:, 10:40, 10:40] = 2
    truth[:, 0, :] = 255
    truth[0, 50, 50] = 7
    predicted = torch.where(truth == 2, 2, 0).to(torch.int16)
    predicted[1, 10:25, 10:40] = 3
    maps = torch.rand(2, height, width).half()
    x = torch.randint(0, 256, (2, 3, height, width)).to(torch.uint8)
    return SegmentedImages(x, truth, predicted, maps, maps, ("ada, test image 1", "bob, test image 12"), 16)


def test_all_of_21_classes_have_their_own_colour() -> None:
    colours = class_colours(21, 0)
    assert colours[0] == to_rgb(BACKGROUND)
    apart = [np.linalg.norm(np.subtract(a, b)) for a, b in itertools.combinations([*colours, to_rgb(UNLABELLED)], 2)]
    assert min(apart) > 0.12
    assert len(set(class_colours(5, None))) == 5


def test_masks_are_painted_numbered_and_scored() -> None:
    figure = segmentation_figure(example(), LABELS, TASK)
    assert overlapping(figure) == []
    truth, predicted = figure.axes[1], figure.axes[7]
    colours = class_colours(len(LABELS), 0)
    painted = truth.images[0].get_array()
    assert painted[20, 20].tolist() == pytest.approx(colours[2])
    assert painted[0, 5].tolist() == pytest.approx(to_rgb(UNLABELLED))
    assert painted[55, 70].tolist() == pytest.approx(to_rgb(BACKGROUND))
    ((number),) = truth.texts
    assert number.get_text() == "2", "the background and a speck bear none"
    x, y = number.get_position()
    assert 10 <= x < 40 > y >= 10
    assert {each.get_text() for each in predicted.texts} == {"2", "3"}
    # image 1: background 1, class 2 1, class 7 0; image 2: background 1, class 2 1/2, class 3 0
    assert figure.axes[2].get_xlabel() == "mIoU 66.66 %"
    assert predicted.get_xlabel() == "mIoU 50.00 %"
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["0 background", "2 class 2", "3 class 3", "7 class 7", "not labelled"]
