"""A device that would own the model: by noise, by its number of examples, first or last, in fleets of two to eight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from aggregator_api.http.app import create_app
from aggregator_api.storage.db.models import EventRow, RoundRow, UpdateRow
from federation import wire
from federation.records import Tensors
from federation.records.tree import map_tree
from federation.wire import uploads
from federation.wire.schema import schema_of
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, Wires, parcel, tiny_plan
from tests.aggregator_api.http_client import OperatorClient
from tests.aggregator_api.rounds.test_suspensions import attention_words as words_of

CLAIMED = 10**9


class Fleet:
    """Devices of a bench that move the model by a step in a direction of their own."""

    def __init__(self, folder: Path, devices: str, *, announced: Mapping[str, int] = {}, **rounds: Any) -> None:
        settings = {"rounds": 1, "clients": None, "minimum_clients": 1, **rounds}
        self.devices, self.folder = devices, folder
        self.bench = Bench(folder, tiny_plan(**settings))
        self.bench.runtime.federations.pause(FEDERATION)
        for device in devices:
            self.bench.say(device, "ready", examples=announced.get(device, 40))
        self.bench.runtime.federations.resume(FEDERATION)

    @property
    def model(self) -> Tensors:
        """The present global model."""
        state: Tensors = wire.decode(self.bench.state(), limit_bytes=1 << 20)["params"]
        return state

    def step(self, device: str, size: float = 1.0, *, examples: int = 40) -> Parcel:
        """Return a device's update, which is `size` honest steps long."""
        generator = torch.Generator().manual_seed(sum(device.encode()))
        start = self.model

        def moved(old: torch.Tensor) -> torch.Tensor:
            return old + size * 0.01 * torch.randn(old.shape, generator=generator)

        base = self.bench.base_of(device)
        params = map_tree(moved, start)
        return parcel(self.bench.now(), device, {"params": params}, examples=examples, base_version=base)

    def play(self, parcels: Sequence[Parcel]) -> None:
        """Upload them in this order, and wait for what comes of the round."""
        number = self.bench.now().round
        for one in parcels:
            assert self.bench.upload(one).status == "accepted"
        wait_for(lambda: self.round(number).closed_at is not None)

    def round(self, number: int = 1) -> RoundRow:
        with self.bench.runtime.database.read() as session:
            return session.scalars(select(RoundRow).where(RoundRow.number == number)).one()

    def events(self, kind: str) -> list[tuple[str, str]]:
        with self.bench.runtime.database.read() as session:
            rows = session.scalars(select(EventRow).where(EventRow.kind == kind).order_by(EventRow.id))
            return [(row.device, row.detail) for row in rows]

    def reasons(self, status: str) -> list[str]:
        with self.bench.runtime.database.read() as session:
            return list(session.scalars(select(UpdateRow.reason).where(UpdateRow.status == status)))

    def stop(self) -> None:
        self.bench.runtime.stop()


def mean(parcels: Sequence[Parcel], weights: Sequence[float]) -> dict[str, Any]:
    """Average updates' parameters in numpy."""
    names = parcels[0].tree["params"]
    return {
        name: np.average([one.tree["params"][name].double().numpy() for one in parcels], axis=0, weights=weights)
        for name in names
    }


def assert_model(fleet: Fleet, expected: Mapping[str, Any]) -> None:
    for name, value in fleet.model.items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("devices", "first"), [("az", True), ("abcz", True), ("abcz", False)])
def test_noise_of_a_thousand_steps_moves_no_fleet_whoever_is_first(tmp_path: Path, devices: str, first: bool) -> None:
    fleet = Fleet(tmp_path, devices)
    honest = [fleet.step(device) for device in devices if device != "z"]
    hostile = fleet.step("z", 1000.0)
    fleet.play([hostile, *honest] if first else [*honest, hostile])
    assert_model(fleet, mean(honest, [1.0] * len(honest)))
    (reason,) = fleet.reasons("excluded")
    assert "over 10 times the median" in reason
    assert fleet.events("update.excluded") == [("z", reason)]
    assert (fleet.round().excluded, fleet.round().capped) == (1, 0)
    fleet.stop()


@pytest.mark.parametrize("announced", [0, CLAIMED])
def test_a_thousand_million_examples_count_as_twice_the_median(tmp_path: Path, announced: int) -> None:
    """Never announced, or announced as such: a step back of the usual size, by a device that claims to be the world."""
    fleet = Fleet(tmp_path, "abcz", announced={"z": announced})
    honest = [fleet.step(device, examples=examples) for device, examples in zip("abc", (30, 40, 50), strict=True)]
    hostile = fleet.step("z", -1.0, examples=CLAIMED)
    fleet.play([hostile, *honest])
    assert_model(fleet, mean([*honest, hostile], [30, 40, 50, 80]))  # lower median of 30 40 50 10⁹ is 40
    ((_, said),) = fleet.events("round.capped")
    assert said == f"z claims {CLAIMED} examples and counts with 80 (rounds.max_weight_ratio)"
    assert (fleet.round().excluded, fleet.round().capped) == (0, 1)
    fleet.stop()


def test_earlier_rounds_refuse_on_arrival_and_survive_a_restart(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "abz", rounds=2, norm_after=3)
    fleet.play([fleet.step(device) for device in "abz"])
    assert fleet.round().norms is not None
    assert fleet.round().norms["params"]["updates"] == 3
    fleet.stop()
    fleet.bench = Bench(tmp_path)
    wait_for(lambda: fleet.bench.collects(2))
    reason = fleet.bench.refused(fleet.step("z", 1000.0))
    assert "of 3 updates of earlier rounds" in reason
    assert fleet.reasons("quarantined") == [reason]
    fleet.play([fleet.step(device) for device in "ab"])
    assert fleet.round(2).phase == "published"
    fleet.stop()


def test_a_round_of_which_too_little_is_left_fails_in_words_and_the_next_one_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "az", rounds=2, minimum_clients=2)
    before = fleet.model
    fleet.play([fleet.step("a"), fleet.step("z", 1000.0)])
    assert fleet.round().phase == "failed"
    assert fleet.round().reason.startswith("quorum not reached: 1 of 2 updates were left out for their norm (z)")
    assert len(fleet.events("update.excluded")) == 1
    assert all(torch.equal(value, before[name]) for name, value in fleet.model.items())
    wait_for(lambda: fleet.bench.collects(2))
    fleet.play([fleet.step("a"), fleet.step("z")])
    assert fleet.round(2).phase == "published"
    fleet.stop()


def test_a_device_that_was_left_out_hears_why_if_it_asks_again(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "abz")
    hostile = fleet.step("z", 1000.0)
    fleet.play([fleet.step("a"), hostile, fleet.step("b")])
    again = fleet.bench.begin(hostile)
    assert again.status == "refused"
    assert "over 10 times the median" in again.reason
    fleet.stop()


def test_a_device_that_is_left_out_hears_why_with_its_next_update_and_the_operator_after_the_second(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, "abz", rounds=3, norm_after=100, max_refused_updates=10)
    reasons, warned = [], []
    for number in (1, 2, 3):
        wait_for(lambda number=number: fleet.bench.collects(number))
        answer = fleet.bench.upload(fleet.step("z", 1000.0))
        assert answer.status == "accepted"
        reasons.append(answer.reason)
        assert [fleet.bench.upload(fleet.step(device)).reason for device in "ab"] == ["", ""]
        wait_for(lambda number=number: fleet.round(number).phase == "published")
        warned.append("updates of 1 device were all refused or left out of their rounds: z." in words_of(fleet.bench))
    assert reasons[0] == ""
    assert reasons[2].startswith("your update of round 2 was left out: the change of params has the L2 norm")
    assert warned == [False, True, True]
    fleet.stop()


def test_changes_that_travel_as_int8_are_judged_as_they_arrive(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "abz")
    origin = {"params": fleet.model}
    sent = []
    for one in (fleet.step("z", 1000.0), fleet.step("a"), fleet.step("b")):
        data = uploads.encode(one.tree, origin, {}, precision="int8").data
        came = uploads.decode(data, schema_of(one.tree), lambda: origin, precision="int8")
        said = {"data": data, "precision": "int8", "base_version": one.manifest.base_version}
        sent.append(parcel(fleet.bench.now(), one.manifest.client, came, **said))
    fleet.play(sent)
    assert_model(fleet, mean(sent[1:], [1, 1]))
    fleet.stop()


def test_rest_tells_whose_weight_was_capped_and_who_was_left_out(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "abcyz", announced={"y": 0})
    fleet.play([fleet.step("z", 1000.0), fleet.step("y", examples=CLAIMED), *map(fleet.step, "abc")])
    fleet.stop()
    with OperatorClient(create_app(fleet.bench.runtime.settings, Wires)) as client:
        base = f"/v1/federations/{FEDERATION}"
        found = client.get(f"{base}/rounds/1").json()
        assert (found["capped"], found["excluded"], found["received"]) == (1, 1, 5)
        assert found["norms"]["params"]["updates"] == 4
        parts = {one["device"]: one for one in client.get(f"{base}/rounds/1/participants").json()["items"]}
        assert {name: one["counted_examples"] for name, one in parts.items()} == {
            "a": 40, "b": 40, "c": 40, "y": 80, "z": None,
        }  # fmt: skip
        assert "over 10 times the median" in parts["z"]["excluded"]
        assert parts["z"]["norms"]["params"] > 100 * parts["a"]["norms"]["params"]
        (left,) = client.get(f"{base}/updates?status=excluded").json()["items"]
        assert (left["device"], left["status"]) == ("z", "excluded")
        text = client.get("/metrics").text
    assert f'gaitway_updates_total{{federation="{FEDERATION}",outcome="excluded"}} 1.0' in text
    assert f'gaitway_capped_updates_total{{federation="{FEDERATION}"}} 1.0' in text


HONEST = tuple("abcd")


def opened(folder: Path, method: str = "fedavg", **rounds: object) -> Bench:
    """Open a round for four honest devices and z."""
    bench = Bench(folder, tiny_plan(rounds=1, clients=None, method=method, **rounds))
    bench.runtime.federations.pause(FEDERATION)
    for device in (*HONEST, "z"):
        bench.say(device, "ready", examples=40)
    bench.runtime.federations.resume(FEDERATION)
    return bench


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Bench]:
    bench = opened(tmp_path)
    yield bench
    bench.runtime.stop()


def reasons(bench: Bench) -> list[str]:
    """What the operator reads of the quarantined updates."""
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(UpdateRow.reason).where(UpdateRow.status == "quarantined")))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([4.0, 7.0], "tensor 'counts' must sum to the 10 examples, not to 11"),
        ([-1.0, 11.0], "whole numbers of at least 0"),
        ([4.5, 5.5], "whole numbers of at least 0"),
    ],
)
def test_counts_of_prototypes_must_be_those_of_the_examples(tmp_path: Path, counts: list[float], words: str) -> None:
    bench = opened(tmp_path, method="fedproto")
    tree = {"prototypes": torch.ones(2, 8), "counts": torch.tensor(counts)}
    assert words in bench.refused(parcel(bench.now(), "z", tree))
    bench.runtime.stop()


def test_more_examples_than_the_device_announced_are_quarantined(judged: Bench) -> None:
    tree = judged.update_of("z").tree
    assert judged.upload(parcel(judged.now(), "a", tree, examples=2 * 40 + 64)).status == "accepted"
    reason = judged.refused(parcel(judged.now(), "z", tree, examples=10**8))
    assert reason == "100000000 examples are claimed, the device announced 40: at most 144 are plausible"
    assert reasons(judged) == [reason]


def test_class_counts_must_sum_to_the_examples(judged: Bench) -> None:
    tree = judged.update_of("z").tree
    assert judged.upload(parcel(judged.now(), "a", tree, class_counts=(4, 6))).status == "accepted"
    reason = judged.refused(parcel(judged.now(), "z", tree, class_counts=(4, 60)))
    assert reason == "class_counts must sum to the 10 examples, not to 64"
