"""Names follow what devices measured: `stable` never moves to a bad version, and whoever looks is told why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from aggregator_api.core.errors import ConflictError
from aggregator_api.federations import service
from aggregator_api.federations.service import FederationChanges
from aggregator_api.notifications import attention
from aggregator_api.rollouts.service import NewRollout
from aggregator_api.storage.db.models import EventRow
from federation.plan import Plan
from federation.protocol import topics
from federation.protocol.messages import AdoptionReport, DeviceStatus, write
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.aggregator_api.rollouts.test_rollouts import SOAK_S
from tests.aggregator_api.rollouts.test_rollouts import Fleet as Releases


class Fleet(Releases):
    """Two devices whose scores are the test's."""

    devices = ("a", "b")

    def play(self, **scores: float) -> None:
        """Play a round: each device says what it measured of the version that the round started from."""
        number = self.now().round
        wait_for(lambda: set(self.invited()) == {"a", "b"})
        for device in ("a", "b"):
            metrics = {"macro_f1_before": scores[device], "macro_f1_trivial": 0.1, "works_before": 1.0}
            metrics |= {"macro_f1_after": scores.get("after", 0.9), "works_after": 1.0}
            assert self.upload(self.update_of(device, metrics=metrics)).status == "accepted"
        wait_for(lambda: self.now().state == "finished" or self.now().round > number)

    def judge(self, round_: int, **scores: float) -> None:
        """Say what devices think of a round's model."""
        for device, score in scores.items():
            said = {"instance": self.now().instance, "round": round_, "source": "global", "answer": "kept"}
            report = AdoptionReport.model_validate({**said, "score": score, "trivial": 0.1})
            status = DeviceStatus(state="idle", examples=10, adoption=report)
            self.send(topics.status(FEDERATION, device), write(status))

    def journal(self, kind: str) -> list[str]:
        """Return what the journal says of one kind."""
        with self.runtime.database.read() as session:
            rows = select(EventRow.detail).where(EventRow.kind == kind).order_by(EventRow.id)
            return list(session.scalars(rows))

    def attention(self) -> list[str]:
        """Return what the pages say under 'Attention'."""
        with self.runtime.database.read() as session:
            return [
                one.message for one in attention.of_federation(session, service.get_federation(session, FEDERATION))
            ]

    def note(self) -> str:
        """Return why `stable` stays."""
        with self.runtime.database.read() as session:
            return service.get_federation(session, FEDERATION).stable_note


def planned(rounds: int, **more: Mapping[str, Any]) -> Plan:
    return Plan.model_validate({**tiny_plan(rounds=rounds).model_dump(), **more})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two devices that play four rounds."""
    found = Fleet(tmp_path / "data", planned(4))
    found.arrive()
    yield found
    found.runtime.stop()


def test_stable_follows_what_is_measured_and_stays_away_from_what_is_worse(fleet: Fleet) -> None:
    fleet.play(a=0.1, b=0.1)  # of version 0
    assert fleet.aliases() == {"latest": 1, "stable": 0}  # nobody has measured version 1 yet
    assert fleet.note() == "version 1 has to wait: 0 of the 2 devices that are needed have measured it"
    fleet.play(a=0.8, b=0.6)  # of version 1
    assert fleet.aliases() == {"latest": 2, "previous": 0, "stable": 1}
    fleet.play(a=0.089, b=0.167)  # of version 2
    assert fleet.aliases() == {"latest": 3, "previous": 0, "stable": 1}
    why = "it is worse: −57.20 points of macro-F1 against version 1, on 2 devices that measured both"
    assert fleet.note().startswith(f"version 2 is not taken: {why}")
    assert [line for line in fleet.attention() if line.startswith("Worse than before: version 2") and why in line]
    assert len(fleet.journal("model.regressed")) == 1
    assert fleet.journal("model.held") == [f"stable stays: {fleet.note()}"]
    fleet.play(a=0.79, b=0.61)  # of version 3: as good
    assert fleet.aliases() == {"latest": 4, "previous": 1, "stable": 3}
    assert len(fleet.journal("model.recovered")) == 1
    fleet.judge(4, a=0.2, b=0.9)  # the last version, on average not as good
    assert fleet.aliases()["stable"] == 3
    assert "Worse than before" in fleet.attention()[0]
    fleet.judge(4, a=0.79)
    assert fleet.aliases() == {"latest": 4, "previous": 3, "stable": 4}
    assert fleet.attention() == []
    assert [line.partition(":")[0] for line in fleet.journal("model.alias")] == [
        "stable = version 1",
        "stable = version 3",
        "stable = version 4",
    ]


def test_measures_that_are_looked_at_late_move_it_as_if_they_had_been_looked_at_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("aggregator_api.rollouts.scheduler.promotion.promote", lambda session, row: None)
        fleet.play(a=0.1, b=0.1)
        fleet.play(a=0.8, b=0.6)  # of version 1
        fleet.play(a=0.1, b=0.1)  # of version 2, which is not as good
    fleet.judge(3, a=0.2)
    assert fleet.aliases()["stable"] == 1


def test_one_devices_word_moves_nothing_where_two_are_needed(fleet: Fleet) -> None:
    fleet.play(a=0.1, b=0.1)
    fleet.judge(1, a=0.9)
    assert fleet.aliases()["stable"] == 0
    assert fleet.note() == "version 1 has to wait: 1 of the 2 devices that are needed has measured it"
    change = FederationChanges.model_validate({"promotion": {"min_devices": 5}})
    fleet.runtime.federation_settings.change(FEDERATION, change)
    fleet.aliases()
    assert "1 of the 5 devices that are needed has measured it; the federation has only 2 devices" in fleet.note()
    fleet.runtime.federation_settings.change(
        FEDERATION, FederationChanges.model_validate({"promotion": {"min_devices": 1}})
    )
    assert fleet.aliases()["stable"] == 1


def test_an_operator_moves_a_name_against_the_measure_only_with_a_reason_and_it_stays_there(fleet: Fleet) -> None:
    fleet.play(a=0.1, b=0.1)
    fleet.play(a=0.8, b=0.6)
    fleet.play(a=0.1, b=0.1)
    assert fleet.aliases()["stable"] == 1
    names = fleet.runtime.aliases
    with pytest.raises(
        ConflictError, match=r"version 2 is not shown to be as good: it is worse: −60\.00 points"
    ) as said:
        names.move(FEDERATION, "stable", 2)
    assert '"force": true and a "reason"' in str(said.value)
    names.move(FEDERATION, "stable", 2, "a demonstration")
    assert fleet.aliases() == {"latest": 3, "previous": 1, "stable": 2}
    assert "forced by an operator (a demonstration); the measure says: it is worse" in fleet.journal("model.alias")[-1]
    line = next(line for line in fleet.attention() if "stable, version 2, against the version that it replaced" in line)
    assert line.startswith("Worse than before")
    fleet.judge(3, a=0.9, b=0.9)  # version 3 was there when the operator chose version 2
    assert fleet.aliases()["stable"] == 2
    names.move(FEDERATION, "stable", 1)  # measured to be better: no force
    assert fleet.aliases()["stable"] == 1
    fleet.play(a=0.9, b=0.9)
    fleet.judge(4, a=0.95, b=0.95)
    assert fleet.aliases()["stable"] == 4
    names.move(FEDERATION, "mine", 0)  # a new name is free
    fleet.judge(2, a=0.0, b=0.0)
    with pytest.raises(ConflictError, match="'mine' stays at version 0, as version 2"):
        names.move(FEDERATION, "mine", 2)


def test_a_drop_of_what_devices_serve_is_told(fleet: Fleet) -> None:
    fleet.play(a=0.5, b=0.5, after=0.9)
    fleet.play(a=0.5, b=0.5, after=0.4)
    fleet.aliases()
    assert "what devices learnt in round 2: it is worse: −50.00 points of macro-F1 against round 1" in " ".join(
        fleet.attention()
    )


def test_measures_are_looked_at_after_a_restart(fleet: Fleet, tmp_path: Path) -> None:
    fleet.play(a=0.1, b=0.1)
    wait_for(partial(fleet.collects, 2))
    fleet.judge(1, a=0.9, b=0.9)
    fleet.runtime.stop()
    again = Fleet(tmp_path / "data")
    assert again.aliases()["stable"] == 1
    again.runtime.stop()


def test_a_version_that_is_measured_to_be_worse_is_not_released(tmp_path: Path) -> None:
    rollout = {"mode": "automatic", "waves": (0.5, 1.0), "soak_s": SOAK_S, "wave_timeout_s": 10 * SOAK_S}
    fleet = Fleet(tmp_path / "data", planned(2, rollout=rollout))
    fleet.arrive()
    fleet.play(a=0.1, b=0.1)
    assert fleet.rollout().version == 1
    for _ in range(2):
        for device in fleet.told():
            fleet.answer(device, score=0.9)
        fleet.wait(SOAK_S)
    assert fleet.rollout().phase == "completed"
    assert fleet.aliases()["released"] == 1
    fleet.play(a=0.9, b=0.9)
    assert (fleet.rollout(2).version, fleet.rollout(2).phase) == (2, "rolling")  # nobody has measured it yet
    fleet.judge(2, a=0.2, b=0.3)
    for device in fleet.told(2):
        fleet.answer(device, "kept", rollout=2, score=0.2)
    fleet.waited = 0.0
    with fleet.runtime.database.read() as session:
        began = fleet.row(session, 2).started_at
    fleet.as_inbox(lambda: fleet.runtime.rollout_scheduler.tick(began + SOAK_S))
    halted = fleet.rollout(2)
    assert (halted.phase, halted.members) == ("halted", 1)
    assert halted.reason.startswith("it is worse: ")
    assert fleet.aliases()["released"] == 1
    with pytest.raises(ConflictError, match="version 2 is not released: it is worse"):
        fleet.runtime.rollouts.start(FEDERATION, NewRollout())
    forced = NewRollout(force=True, reason="a study of bad models")
    assert fleet.runtime.rollouts.start(FEDERATION, forced) == 3
    fleet.runtime.stop()


def test_a_rollout_is_not_completed_while_too_few_have_measured_its_version(tmp_path: Path) -> None:
    rollout = {"mode": "manual", "waves": (1.0,), "soak_s": SOAK_S, "wave_timeout_s": SOAK_S}
    fleet = Fleet(tmp_path / "data", planned(1, rollout=rollout))
    fleet.arrive()
    fleet.play(a=0.1, b=0.1)
    fleet.runtime.rollouts.start(FEDERATION, NewRollout())
    fleet.answer("a", score=0.9)
    fleet.answer("b", score=None)
    fleet.wait(SOAK_S)
    why = "not completed yet: 1 of the 2 devices that are needed has measured it"
    assert (fleet.rollout().phase, fleet.rollout().reason) == ("rolling", why)
    assert f"Rollout 1 waits, {why}." in fleet.attention()
    fleet.judge(1, b=0.8)
    fleet.wait(1)
    assert (fleet.rollout().phase, fleet.rollout().reason) == ("completed", "")
    fleet.runtime.stop()
