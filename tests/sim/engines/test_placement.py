"""Every method's round, on a GPU that is not there: what was left on the CPU raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from export.program.tracing import as_dicts
from federation.methods import METHODS
from federation.records import Examples
from federation.records.tree import leaves, map_tree
from federation.training.prediction import measure
from federation.wire.schema import schema_of
from sim.engines import ClientJob, Serial, Stacked
from tests.federation.federated import SIZES, Federation, federation
from tests.one_device import GPU, DeviceMixError, OneDevice

ENGINES = {"serial": Serial, "stacked": lambda: Stacked(chunk=2, device=GPU)}


def there(tree: Any) -> Any:
    return map_tree(lambda value: value.to(GPU), tree)


def jobs(fed: Federation) -> list[ClientJob]:
    broadcasts = {name: there(fed.setup.method.broadcast(fed.state, name)) for name in SIZES}
    return [
        ClientJob(name, fed.setup, there(fed.initial), broadcasts[name], Examples(*map(there, fed.examples[name])))
        for name in SIZES
    ]


STACKED = ("analytic", "fedali", "fedpac", "pfedfda", "scaffold")
"""What methods compute with stacked clients goes through the same hooks; these have most of their own."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Leave to CI what takes its time, and to hand what has little of its own."""
    if name == "fedali":
        return []
    return [pytest.mark.ci if name in STACKED else pytest.mark.slow]


PAIRS = [
    pytest.param(name, engine, marks=marks(name), id=f"{engine}-{name}")
    for engine, names in (("serial", METHODS), ("stacked", STACKED))
    for name in names
]


@pytest.mark.parametrize(("name", "engine"), PAIRS)
def test_an_engine_computes_a_round_on_the_device_that_its_jobs_lie_on(name: str, engine: str) -> None:
    fed = federation(METHODS[name](), dropout=0.1, epochs=1, dtype=torch.float32)
    with OneDevice() as watched:
        results = dict(ENGINES[engine]().run(jobs(fed), 1))
        counted = measure(fed.setup, results["ada"].client, Examples(*map(there, fed.examples["ada"])), 8)
    assert watched.computed > 50
    alone = fed.train("ada")
    for part in ("client", "upload"):
        mine, expected = ({part: getattr(each, part)} for each in (results["ada"], alone))
        assert schema_of(as_dicts(mine)) == schema_of(as_dicts(expected))
        assert {value.device.type for value in leaves(mine)} <= {GPU}
    assert {value.device.type for value in leaves(counted)} == {"cpu"}


def test_the_watch_sees_what_was_left_behind() -> None:
    fed = federation(METHODS["fedavg"]())
    (job, *_) = jobs(fed)
    left = job._replace(examples=fed.examples["ada"])
    with OneDevice(), pytest.raises(DeviceMixError):
        list(Serial().run([left], 1))
