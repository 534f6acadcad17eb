"""Where the presets of each paper take features, and that this moves no head."""

from __future__ import annotations

import pytest
import torch

import models
from federation.records.head import is_head
from sim.presets import PRESETS
from tests.sim.presets.test_presets import settings_of

WANTED = {
    "synthetic": ("last_layer", (256,)),
    "mnist": ("last_layer", (256,)),
    "femnist": ("last_layer", (256,)),
    "celeba": ("head", (32 * 5 * 5,)),
    "voc": ("encoder", (256, 16, 16)),
}
"""Of Michieli and Ozay's data: the place and an example's features; images of VOC have 256 × 256 pixels."""


def of_data(data: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(f"michieli2021-{data}-")]


def test_no_preset_is_left_out() -> None:
    assert sum(len(of_data(data)) for data in WANTED) == sum(name.startswith("michieli2021") for name in PRESETS)


@pytest.mark.parametrize("data", WANTED)
@torch.no_grad()
def test_michielis_features_are_the_encoders(data: str) -> None:
    place, shape = WANTED[data]
    for name in of_data(data):
        for method in ("fedproto_margin", "fedavg", "centralized"):
            settings = settings_of(name, method=method)
            assert settings.model.options.get("features_at", "head") == place
            assert settings.training.feature_dim == shape[0]
    spec = settings_of(of_data(data)[0]).model
    network = models.build(spec.name, classes=settings.training.classes, **spec.options).eval()
    assert tuple(network(torch.randn(1, *network.input_shape)).features.shape[1:]) == shape
    options = {key: value for key, value in spec.options.items() if key != "features_at"}
    usual = models.build(spec.name, classes=settings.training.classes, **options)
    heads = [[n for n, _ in each.named_parameters() if is_head(n)] for each in (network, usual)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize("data", WANTED)
def test_what_the_paper_leaves_open_is_a_departure(data: str) -> None:
    left_open = "The paper doesn't say where its encoders end"
    assert all(left_open in " ".join(PRESETS[name].departures) for name in of_data(data))


def test_tans_and_qiaos_features_stay_what_enters_the_last_layer() -> None:
    """Tan et al.'s D = 50 on MNIST; the base of their FedPer are 5,280 parameters of convolutions."""
    for name in ("tan2022-mnist-3", "tan2022-femnist-4", "tan2022-mnist-5-mh", "qiao2023-mnist", "qiao2023-fashion"):
        settings = settings_of(name)
        assert settings.training.feature_dim == 50
        assert all("features_at" not in spec.options for spec in settings.models)
    spec = settings_of("tan2022-mnist-3", method="fedper").model
    network = models.build(spec.name, classes=10, **spec.options)
    assert sum(value.numel() for n, value in network.named_parameters() if not is_head(n)) == 5280
