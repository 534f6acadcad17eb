"""Files of presets: families by matrix, and parts that entries share."""

from __future__ import annotations

import pytest
import torch

import models
from federation.records.head import is_head
from sim.presets import PRESETS
from sim.presets.preset import Reported, read_presets
from tests.sim.presets.test_presets import settings_of

FAMILY = """
paper = "Somebody 2020"

[part.training]
departures = ["of training"]
options = { lr = 0.1, rounds = 5, set = ["model.width=3"] }

[part.mnist]
parts = ["training"]
reported = { examples = 10, mean = 5.0, std = 1.0 }
by_method.fedprox.set = ["mu=1"]

[part.cifar10]
options.lr = 0.01

[[preset]]
name = "somebody-{data}-{ways}"
matrix = [[{ data = "mnist" }, { data = "cifar10" }], [{ ways = 3 }, { ways = 4 }]]
parts = ["{data}"]
about = "{data}, n = {ways}"
clients = "{ways}"
needs = "{data}"
departures = ["of its own"]
by_method.fedprox.rounds = 7
options = { rounds = 9, data = "{data}", set = ["partition.ways={ways}"] }
"""


def test_a_family_has_a_preset_for_each_combination_the_last_row_varying_fastest() -> None:
    presets = read_presets(FAMILY)
    assert list(presets) == ["somebody-mnist-3", "somebody-mnist-4", "somebody-cifar10-3", "somebody-cifar10-4"]
    preset = presets["somebody-mnist-4"]
    assert (preset.paper, preset.about, preset.needs) == ("Somebody 2020", "mnist, n = 4", "mnist")
    assert preset.clients == 4, "the cell's number, not its text"


def test_an_entry_is_laid_over_its_parts_and_lists_follow_one_another() -> None:
    preset = read_presets(FAMILY)["somebody-mnist-3"]
    assert preset.options == {"lr": 0.1, "rounds": 9, "data": "mnist", "set": ["model.width=3", "partition.ways=3"]}
    assert preset.by_method == {"fedprox": {"set": ["mu=1"], "rounds": 7}}
    assert preset.departures == ("of training", "of its own")
    assert preset.reported == Reported(10, 5.0, 1.0)
    other = read_presets(FAMILY)["somebody-cifar10-3"]
    assert (other.options["lr"], other.reported, other.departures) == (0.01, None, ("of its own",))


@pytest.mark.parametrize(
    ("old", "new"),
    [('parts = ["{data}"]', 'parts = ["nobody"]'), ("{data}, n", "{date}, n"), ("about =", "abuot =")],
)
def test_a_part_a_name_or_a_key_that_does_not_exist_is_an_error(old: str, new: str) -> None:
    with pytest.raises((KeyError, TypeError)):
        read_presets(FAMILY.replace(old, new))


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
