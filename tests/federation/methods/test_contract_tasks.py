"""The contract over every task, every method that can learn it and networks of the table, alone and stacked."""

from __future__ import annotations

import pytest
import torch

from federation.methods import METHODS
from federation.records import Examples
from federation.records.tree import map_tree
from federation.tasks import TASKS, task_from_json, task_to_json
from federation.training.client_round import train_stacked
from federation.training.local_round import ClientWork, LocalRound, local_round
from federation.training.optimizers import optimizer_for
from federation.training.prediction import measure_each, measure_stacked, task_mismatch
from federation.training.schedule import Schedule, in_order
from federation.wire.schema import check_tree, upload_schema
from models.registry import learners
from tests.federation.federated import SIZES, Federation, federation
from tests.federation.methods.test_contract import as_tree, difference

TINY = [
    (task, method, None)
    for task, kind in TASKS.items()
    for method, each in METHODS.items()
    if task != "classification" and each().task_incompatibility(kind()) is None  # classification: `test_contract`
]
OF_THE_TABLE = [
    ("segmentation", method, name)
    for name in learners("segmentation")
    for method, each in METHODS.items()
    if not each().traits.requires_alp and each().task_incompatibility(TASKS["segmentation"]()) is None
]
ALWAYS = [(method, None) for method in ("fedavg", "fedali", "fedproto")] + [("fedproto", "segmenter_small")]
SEVERAL_NETWORKS = ("fedavg", "fedproto", "fedproto_margin")
LARGE = "deeplab_v3plus"
"""Two of whose rounds in float64 take tens of seconds; with these methods it is in CI, with all by hand."""
LARGE_IN_CI = ("fedavg", "fedproto_margin")


def marks(method: str, name: str | None) -> list[pytest.MarkDecorator]:
    """Leave to CI every method with one network, and to hand all networks with it."""
    if (method, name) in ALWAYS:
        return []
    in_ci = name is None or (name != LARGE and method in SEVERAL_NETWORKS) or (name == LARGE and method in LARGE_IN_CI)
    return [pytest.mark.ci if in_ci else pytest.mark.slow]


every_case = pytest.mark.parametrize(
    ("task", "method", "name"),
    [pytest.param(*case, marks=marks(*case[1:])) for case in TINY + OF_THE_TABLE],
)


def of(task: str, method: str, name: str | None, dropout: float = 0.0) -> Federation:
    return federation(METHODS[method](), task=task, network_name=name, dropout=dropout)


@every_case
def test_two_rounds_stacked_equal_two_rounds_one_by_one(task: str, method: str, name: str | None) -> None:
    fed = of(task, method, name, dropout=0.3)
    clients = dict.fromkeys(SIZES, fed.initial)
    for number in (1, 2):
        broadcasts = [fed.setup.method.broadcast(fed.state, client) for client in SIZES]
        alone = [fed.train(who, client, number) for who, client in clients.items()]
        together = train_stacked(
            fed.setup,
            list(clients.values()),
            broadcasts,
            list(fed.examples.values()),
            client_ids=list(SIZES),
            round_number=number,
        )
        for one, other in zip(alone, together, strict=True):
            assert difference(as_tree(one), as_tree(other)) < 1e-10
        assert difference(alone[0].client.params, clients["ada"].params) > 1e-3, "nothing was trained"
        check_tree(alone[0].upload, upload_schema(fed.setup.method, fed.setup.training, fed.initial))
        clients = dict(zip(SIZES, [one.client for one in alone], strict=True))
        fed = fed._replace(state=fed.setup.method.aggregate(fed.state, fed.updates()))


@every_case
def test_padding_changes_nothing(task: str, method: str, name: str | None) -> None:
    """Rows of padding with absurd values leave no trace in a round."""
    fed = of(task, method, name)
    training, mine = fed.setup.training, fed.examples["bob"]
    absurd = Examples(torch.cat([mine.x, torch.full_like(mine.x[:1], 1e6)]), torch.cat([mine.y, mine.y[:1] * 0 + 2]))
    epochs = sum(phase.epochs for phase in fed.setup.method.phases(training))

    def run(examples: Examples, padding: int) -> LocalRound:
        order = _padded(in_order(len(mine.y), training.batch_size), padding, len(mine.y))
        stacked = [Schedule(part.rows[None], part.mask[None]) for part in (_repeated(order, epochs), order)]
        client, broadcast, own = map_tree(
            lambda value: value[None], (fed.initial, fed.setup.method.broadcast(fed.state, "bob"), examples)
        )
        optimizer = optimizer_for(training, stacked=True)
        return local_round(fed.setup, optimizer, client, broadcast, ClientWork(own, *stacked), stacked=True)

    assert difference(as_tree(run(mine, 0)), as_tree(run(absurd, 2))) < 1e-12


def _repeated(order: Schedule, epochs: int) -> Schedule:
    return Schedule(order.rows.repeat(epochs, 0), order.mask.repeat(epochs, 0))


def _padded(order: Schedule, rows: int, place: int) -> Schedule:
    """Add rows of padding to every batch, which point at one place."""
    index, mask = (
        torch.nn.functional.pad(torch.from_numpy(part), (0, rows)).numpy() for part in (order.rows, order.mask)
    )
    index[mask == 0] = place
    return Schedule(index, mask)


@every_case
def test_scores_stacked_are_those_one_by_one(task: str, method: str, name: str | None) -> None:
    fed = of(task, method, name)
    broadcast = fed.setup.method.broadcast(fed.next().state, "ada")
    clients = [fed.setup.method.refresh(fed.train(who).client, broadcast) for who in SIZES]
    union = Examples(*(torch.cat(parts) for parts in zip(*fed.examples.values(), strict=True)))
    stacked = measure_stacked(fed.setup, clients, union, 8)
    for client, found in zip(clients, stacked, strict=True):
        alone = measure_each(fed.setup, client, fed.examples, 8)
        added = {key: sum(each[key] for each in alone.values()) for key in found}
        for key, value in found.items():
            torch.testing.assert_close(value, added[key], rtol=1e-12, atol=1e-12)
        metrics = fed.setup.task.metrics(found)
        assert metrics.keys() == fed.setup.task.metric_kinds.keys()
        assert all(value > 0 for key, value in metrics.items() if key != "r2")  # which may be below 0


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_described_by_json_and_fits_its_own_network_alone(task: str) -> None:
    assert task_from_json(task_to_json(TASKS[task]())) == TASKS[task]()
    assert next(iter(TASKS[task].metric_kinds)) == TASKS[task].primary_metric
    for other in TASKS:
        fed = federation(METHODS["fedavg"](), task=other)
        mismatch = task_mismatch(
            fed.setup.__class__(fed.setup.method, fed.setup.training, fed.setup.network, TASKS[task]()),
            fed.initial,
            fed.examples["bob"],
        )
        assert (mismatch is None) == (other == task)
