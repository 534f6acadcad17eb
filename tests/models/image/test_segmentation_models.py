"""Networks that give every pixel a class: images of any sides, and interpolation against numpy."""

import numpy as np
import pytest
import torch

from models import build
from models.image.segmentation import resized


@pytest.mark.parametrize("sides", [(180, 240), (90, 120), (33, 50), (1, 1)])
def test_the_small_segmenter_takes_images_of_any_sides(sides: tuple[int, int]) -> None:
    model = build("segmenter_small", classes=11, channels=[8, 8, 16, 16], feature_dim=8).eval()
    features, logits = model(torch.randn(2, 3, *sides))
    assert features.shape == (2, 8, -(-sides[0] // 4), -(-sides[1] // 4))
    assert logits.shape == (2, 11, *sides)


@pytest.mark.parametrize(("small", "large"), [((3, 4), (12, 15)), ((5, 7), (5, 7)), ((6, 5), (2, 9))])
def test_resized_interpolates_between_the_centres_of_pixels(small: tuple[int, int], large: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, *small, dtype=torch.float64)
    found = resized(maps, torch.zeros(large)).numpy()
    rows, columns = (
        np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1) for old, new in zip(small, large, strict=True)
    )
    along = np.stack(
        [np.interp(rows, np.arange(small[0]), line) for line in maps.numpy().swapaxes(2, 3).reshape(-1, small[0])]
    )
    along = along.reshape(2, 3, small[1], large[0]).swapaxes(2, 3)
    wanted = np.stack([np.interp(columns, np.arange(small[1]), line) for line in along.reshape(-1, small[1])])
    np.testing.assert_allclose(found, wanted.reshape(2, 3, *large), atol=1e-12)


def test_a_group_of_images_is_answered_as_each_alone() -> None:
    model = build("segmenter_small", classes=4, channels=[8, 16, 16, 24], feature_dim=16).double().eval()
    x = torch.randn(3, 3, 20, 28, dtype=torch.float64)
    together = model(x).logits
    for one, image in zip(together, x, strict=True):
        torch.testing.assert_close(model(image[None]).logits[0], one, rtol=1e-10, atol=1e-11)
