"""What partitions refuse, and how they say it."""

from __future__ import annotations

import numpy as np
import pytest

from sim.data.partitions import Dirichlet, Equal, Natural, NWay, Partition, Pool, PowerLaw, Shards, partition_from_json
from sim.errors import SettingsError
from tests.sim.data.partitions.pools import pool


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"kind": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"kind": "dirichlet", "alhpa": 1}, "option of the partition dirichlet 'alhpa'.*did you mean 'alpha'"),
        ({"kind": "dirichlet", "alpha": "small"}, r"dirichlet: alpha: .*\(got 'small'\)"),
        ({"kind": "dirichlet", "alpha": 0}, "alpha is 0"),
        ({"kind": "dirichlet", "axis": "row"}, r"axis: .*\(got 'row'\)"),
        ({"kind": "shards", "sigma": 11}, "sigma is 11"),
        ({"kind": "power_law", "gamma": 0}, "gamma is 0"),
        ({"kind": "power_law", "alpha": 0}, "power_law: alpha is 0"),
        ({"kind": "n_way", "ways": 0}, "ways is 0"),
        ({"kind": "equal", "clients": 0}, "clients is 0"),
        ({"kind": "equal", "test_share": 1}, "test_share is 1"),
        ({}, "unknown partition ''"),
    ],
)
def test_wrong_options_are_explained(description: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        partition_from_json(description)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (Dirichlet(clients=400), "3000 examples|2[0-9]+ examples for 400 clients"),
        (Dirichlet(clients=100, alpha=0.001), "none of 1000 draws"),
        (Shards(clients=4000), "need 5 examples each of class 0"),
        (Shards(clients=10, classes=5), "5 classes per client, but the data have 4"),
        (PowerLaw(clients=1501), "3000 examples for 1501 clients, which need one to train and one to test on"),
        (NWay(clients=100), "of class .*use fewer clients or a smaller shots"),
        (NWay(clients=6, shots=10, test_shots=100), "use fewer clients or a smaller test_shots"),
        (Natural(clients=8), "the data have 7"),
        (Natural(minimum=10_000), "no client has 10000"),
    ],
)
def test_what_cannot_be_divided_is_explained(partition: Partition, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        partition.divide(pool(), 0)


def test_data_without_a_test_part_or_clients_say_what_to_do() -> None:
    y = np.repeat([0, 1], 20)
    bare = Pool(y, 2, np.ones(40, bool))
    with pytest.raises(SettingsError, match='set test="split"'):
        Equal(clients=2).divide(bare, 0)
    with pytest.raises(SettingsError, match="use another partition"):
        Natural().divide(bare, 0)
