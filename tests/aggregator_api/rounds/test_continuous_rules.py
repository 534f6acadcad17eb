"""Rules that hold devices' sums against one another, live: a version is what the simulation makes of the same sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.federations import exports
from aggregator_api.federations.service import FederationChanges
from aggregator_api.storage import findings
from aggregator_api.storage.db.models import ContributionRow, EventRow, ModelVersionRow, RoundRow
from aggregator_api.storage.findings import Severity
from federation import wire
from federation.aggregation import ridge
from federation.aggregation.present_sums import combined
from federation.methods import method_from_json
from federation.records import Tree, Update
from federation.tasks.task import LabelledFeatures
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import (
    CLASSES,
    FEATURES,
    continuous_plan,
    sends,
    state_of,
    sums_parcel,
    withdrawal_parcel,
)
from tests.aggregator_api.generated_devices import FEDERATION

RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "trimmed": {"aggregation": "trimmed_mean", "trim": 0.2},
    "median": {"aggregation": "median"},
    "groups": {"aggregation": "median", "groups": 3},
}
HONEST, HOSTILE = "abcdef", "g"


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network below the head takes seconds to export; test_feature_model does it."""
    monkeypatch.setattr(exports, "onnx", lambda made: b"onnx")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Make servers with a continuous federation by a rule, each in a folder of its own."""
    made: list[Bench] = []

    def start(rule: str, **publication: Any) -> Bench:
        folder = tmp_path / str(len(made))
        beside = {"database_url": f"sqlite:///{folder}.sqlite3"} if made else {}
        plan = continuous_plan(**publication).model_copy(update={"method": {"name": "analytic", **RULES[rule]}})
        made.append(Bench(folder, plan, **beside))
        for device in HONEST + HOSTILE:
            made[-1].say(device, "ready")
        return made[-1]

    yield start
    for bench in made:
        bench.stop()


def sums(device: str, examples: int = 10, *, turned: int = 0) -> Tree:
    """Classes lie where they lie on every device; `turned`: the device calls them by each other's name."""
    draw = torch.Generator().manual_seed(ord(device))
    classes = torch.arange(examples) % CLASSES
    features = 0.5 * torch.randn(examples, FEATURES, generator=draw) + torch.where(classes == 0, 1.0, -1.0)[:, None]
    rows = LabelledFeatures(features, (classes + turned) % CLASSES, torch.ones(examples))
    return ridge.travelling(ridge.added(ridge.empty_ridge_sums(CLASSES, FEATURES, torch.zeros(())), rows, 4.0))


def send_all(bench: Bench, trees: dict[str, Tree], sequence: int = 1) -> None:
    for device, tree in trees.items():
        sends(bench, device, sequence, tree=tree)
    settled(bench)


def settled(bench: Bench) -> None:
    def is_settled() -> bool:
        bench.as_inbox(bench.runtime.coordinator.tick)
        with bench.runtime.database.read() as session:
            waits = select(ContributionRow.id).where(ContributionRow.changed_at.is_not(None))
            return session.scalar(waits) is None and not session.scalar(
                select(RoundRow.id).where(RoundRow.closed_at.is_(None))
            )

    wait_for(is_settled)


def simulated(bench: Bench, trees: dict[str, Tree]) -> bytes:
    """What the function that the simulation calls makes of the first state and all sums at once."""
    with bench.runtime.database.read() as session:
        first = session.scalars(select(ModelVersionRow).order_by(ModelVersionRow.version)).first()
        assert first is not None
        data = bench.runtime.blobs.read(first.state_sha256)
    plan = bench.now().plan
    method, initial = method_from_json(plan.method), wire.decode(data, limit_bytes=len(data))
    read = {device: Update(device, 10, 0, tree) for device, tree in trees.items()}
    return wire.encode(combined(method, plan.rounds, plan.training.seed, initial, list(trees), read.__getitem__).state)


def assert_whole(bench: Bench) -> None:
    with bench.runtime.database.read() as session:
        (found,) = findings.check_sums(session, bench.runtime.blobs)
    assert found.level is Severity.OK, found


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=pytest.mark.ci if rule in ("median", "trimmed", "mean") else ()) for rule in RULES],
)
def test_a_version_is_the_simulations_and_who_left_was_never_there(rule: str, make: Callable[..., Bench]) -> None:
    trees = {device: sums(device) for device in HONEST} | {HOSTILE: sums(HOSTILE, turned=1)}
    bench, without = make(rule), make(rule)
    send_all(bench, trees)
    assert bench.state() == simulated(bench, trees)
    assert_whole(bench)
    used = int(state_of(bench)["sums"]["clients"])
    assert used == {"mean": 7, "trimmed": 6, "median": 6, "groups": used}[rule]
    assert bench.begin(withdrawal_parcel(bench.now(), "c", 2)).status == "accepted"
    settled(bench)
    others = {device: tree for device, tree in trees.items() if device != "c"}
    send_all(without, dict(reversed(others.items())))
    assert bench.state() == without.state() == simulated(bench, others)
    assert_whole(bench)


def test_a_device_that_claims_a_thousand_times_the_windows_weighs_as_two(make: Callable[..., Bench]) -> None:
    bench = make("mean")
    send_all(bench, {device: sums(device) for device in HONEST})
    heavy = sums(HOSTILE, 9000, turned=1)
    bench.say(HOSTILE, "ready", examples=9000)
    sent = sums_parcel(bench.now(), HOSTILE, 1, tree=heavy, examples=9000)
    assert bench.upload(sent).status == "accepted"
    settled(bench)
    weights = state_of(bench)["sums"]["gram"][-1] - sum(int(sums(device)["gram"][-1]) for device in HONEST)
    assert float(weights) == pytest.approx(2 * int(sums("a")["gram"][-1]), rel=1e-6)
    assert_whole(bench)
    with bench.runtime.database.read() as session:
        said = [row.detail for row in session.scalars(select(EventRow).where(EventRow.kind == "round.capped"))]
        newest = session.scalars(select(RoundRow).order_by(RoundRow.number.desc())).first()
    assert said == ["g counts as with 40 examples (rounds.max_weight_ratio)"]
    assert newest is not None
    assert (newest.capped, newest.excluded) == (1, 0)


def test_rules_may_change_and_the_sums_are_still_those_of_the_rows(make: Callable[..., Bench]) -> None:
    """A version says by which rules it was made; with none left the next one is of the changes again."""
    bench = make("mean")
    trees = {device: sums(device, 10) for device in "abc"} | {"d": sums("d", 400)}
    bench.say("d", "ready", examples=400)
    for device, tree in trees.items():
        sent = sums_parcel(bench.now(), device, 1, tree=tree, examples=400 if device == "d" else 10)
        assert bench.upload(sent).status == "accepted"
    settled(bench)
    assert_whole(bench)
    for number, ratio in enumerate((1.0, None, None), start=2):
        rounds = {"max_weight_ratio": ratio, "norm_factor": None}
        bench.runtime.federation_settings.change(FEDERATION, FederationChanges.model_validate({"rounds": rounds}))
        assert_whole(bench)
        for device in "ab":
            sends(bench, device, number, tree=sums(device.upper() if number % 2 else device))
        settled(bench)
        assert_whole(bench)
    assert "rules" not in state_of(bench)


def test_a_deleted_devices_name_is_not_needed(make: Callable[..., Bench]) -> None:
    bench = make("median", min_changes=3)
    send_all(bench, {device: sums(device) for device in "abcdef"})
    bench.as_inbox(lambda: bench.runtime.deletion.delete_device(FEDERATION, "b", dry_run=False))
    assert_whole(bench)
    sends(bench, "a", 2, tree=sums("x"))
    sends(bench, "c", 2, tree=sums("y"))
    settled(bench)
    assert_whole(bench)
    assert int(state_of(bench)["sums"]["clients"]) <= 5
