"""Files of presets: families by matrix, and parts that entries share."""

from __future__ import annotations

import pytest

from sim.presets.preset import Reported, read_presets

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
