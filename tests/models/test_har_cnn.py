"""The HAR CNN: its size, its options, and the errors about them."""

import pytest
import torch

from models import OptionError, build


def test_the_parameter_counts_of_the_docstring() -> None:
    assert sum(p.numel() for p in build("har_cnn", classes=6).parameters()) == 123_302
    assert sum(p.numel() for p in build("har_cnn_alp", classes=6).parameters()) == 197_798


def test_clients_of_different_capacity_share_the_feature_width() -> None:
    x = torch.randn(2, 128, 6)
    widths = [build("har_cnn", classes=4, channels=c).eval()(x).features.shape[1] for c in [(16, 24), (64, 96)]]
    assert widths == [192, 192]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(OptionError, match="multiples of 8"):
        build("har_cnn", classes=4, channels=(16, 20))
    with pytest.raises(OptionError, match="two channel counts"):
        build("har_cnn", classes=4, channels=(16, 24, 32))
    with pytest.raises(OptionError, match="one count"):
        build("har_cnn_alp", classes=4, prototypes=(8, 8))
    with pytest.raises(OptionError, match="option 'alp' has no option 'bta'; did you mean 'beta'"):
        build("har_cnn_alp", classes=4, alp={"bta": 0.1})
