"""A federation with clipping and noise: what is published, and the account of ε that its operator reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from aggregator_api.core.errors import UnprocessableError
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.queries.devices import waiting_for
from aggregator_api.storage.db.models import EventRow, FederationRow, RoundRow
from federation import wire
from federation.plan import SecureSettings
from federation.privacy.accounting import epsilon
from federation.privacy.differential_privacy import Aggregated, aggregated
from federation.records.tree import flatten, map_tree
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, parcel, tiny_plan


def accounts(bench: Bench) -> list[tuple[float | None, float | None]]:
    """Return every round's noise multiplier and ε."""
    with bench.runtime.database.read() as session:
        rows = session.scalars(select(RoundRow).order_by(RoundRow.number))
        return [(row.noise_multiplier, row.epsilon) for row in rows]


def waits(bench: Bench) -> str:
    with bench.runtime.database.read() as session:
        return waiting_for(session, session.scalars(select(FederationRow)).one())


def said(bench: Bench) -> list[str]:
    with bench.runtime.database.read() as session:
        return list(session.scalars(select(EventRow.detail).where(EventRow.kind == "round.privacy")))


def test_a_clipped_federation_moves_no_further_than_the_norm_and_has_no_epsilon(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=1, clip_norm=0.5))
    start = wire.decode(bench.state(), limit_bytes=1 << 20)
    for device in "ab":
        bench.say(device, "ready", examples=90)
    same = map_tree(lambda value: value + 1.0, start)
    for device, examples in (("a", 10), ("b", 90)):
        assert bench.upload(parcel(bench.now(), device, same, examples=examples)).status == "accepted"
    wait_for(lambda: bench.now().state == "finished")
    end = wire.decode(bench.state(), limit_bytes=1 << 20)
    moved = flatten(map_tree(torch.sub, end, start)).values()
    assert sum(float(value.double().square().sum()) for value in moved) ** 0.5 == pytest.approx(0.5, rel=1e-4)
    assert accounts(bench) == [(0.0, None)]
    assert said(bench)[0].startswith("no bound: a round had no noise")
    bench.runtime.stop()


def test_epsilon_grows_with_the_rounds_of_the_client_that_took_part_most(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    plan = tiny_plan(rounds=2, clients=None, minimum_clients=1, clip_norm=1.0, noise_multiplier=2.0, norm_factor=None)
    bench = Bench(tmp_path, plan)
    bench.say("a", "ready")
    for number, devices in ((1, "a"), (2, "ab")):
        assert bench.now().round == number
        if number == 1:
            bench.say("b", "ready")  # it is in the second round alone
        for device in devices:
            bench.upload(bench.update_of(device))
        wait_for(lambda number=number: bench.now().round > number or bench.now().state == "finished")
    assert accounts(bench) == [(2.0, epsilon(1 / 4, 1e-5)), (2.0, epsilon(2 / 4, 1e-5))]
    expected = [f"ε ≤ {epsilon(n / 4, 1e-5):.4g} at δ = 1e-05; noise multiplier 2," for n in (1, 2)]
    assert [text[: len(start)] for text, start in zip(said(bench), expected, strict=True)] == expected
    bench.runtime.stop()


def test_a_device_rests_while_the_noise_of_its_round_is_correlated_with_later_ones(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"clip_norm": 1.0, "noise_multiplier": 2.0, "noise_bands": 3, "minimum_clients": 1}
    bench = Bench(tmp_path, tiny_plan(rounds=4, clients=1, **private))
    bench.say("a", "ready")
    for number, device in ((1, "a"), (2, "b"), (3, "c")):
        if device != "a":  # whoever has taken part waits, although nobody else is here
            assert bench.now().state == "waiting"
            resting = "1 online rests" if number == 2 else "2 online rest"
            assert f"0 of the 1 device that a round needs are online; {resting}, since with noise_bands" in waits(bench)
            bench.say(device, "ready")
        wait_for(lambda number=number: bench.now().state == "collecting" and bench.now().round == number)
        bench.upload(bench.update_of(device))
        wait_for(lambda number=number: len(accounts(bench)) > number or bench.now().state == "waiting")
    wait_for(lambda: bench.collects(4))  # two published rounds later `a` may again, and nobody else
    bench.upload(bench.update_of("a"))
    wait_for(lambda: bench.now().state == "finished")
    assert accounts(bench) == [(2.0, epsilon(1 / 4, 1e-5))] * 3 + [(2.0, epsilon(2 / 4, 1e-5))]
    bench.runtime.stop()


def test_a_masked_federation_says_who_lacks_a_key(tmp_path: Path) -> None:
    plan = tiny_plan(clients=None, max_weight_ratio=None, norm_factor=None)
    bench = Bench(tmp_path, plan.model_copy(update={"secure": SecureSettings(mode="masked")}))
    bench.say("a", "ready")
    expected = "0 of the 3 devices that a round needs are online; 1 online can't take part in secure sums"
    assert expected in waits(bench)
    bench.runtime.stop()


def test_noise_leans_on_that_of_the_version_before_and_on_none_where_latest_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of a version that was gone back to is in other published models already: it would cancel there."""
    pytest.importorskip("dp_accounting")
    leans: list[bool] = []

    def noted(*given: Any) -> Aggregated:
        leans.append(bool(given[-1]))
        return aggregated(*given)

    monkeypatch.setattr("aggregator_api.rounds.aggregation.aggregated", noted)
    private = {"clip_norm": 1.0, "noise_multiplier": 2.0, "noise_bands": 4, "minimum_clients": 1}
    bench = Bench(tmp_path, tiny_plan(rounds=4, clients=1, **private))
    for number, device in enumerate("abcd", 1):
        if number == 3:
            bench.runtime.aliases.move(FEDERATION, "latest", 1, force="for a test")
        bench.say(device, "ready")
        wait_for(lambda number=number: bench.now().state == "collecting" and bench.now().round == number)
        bench.upload(bench.update_of(device))
        wait_for(lambda number=number: len(said(bench)) == number)
    assert leans == [False, True, False, True]
    bench.runtime.stop()


def test_a_method_that_cannot_be_private_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    new = NewFederation(name="walk", plan=tiny_plan(method="fedproto", clip_norm=1.0))
    with pytest.raises(UnprocessableError, match="fedproto sends or combines more"):
        bench.runtime.federations.create(new)
    bench.runtime.stop()
