"""A server with something on every page: federations, rounds, devices, a rollout, quarantined updates, tokens."""

from __future__ import annotations

import math
import time
from random import Random

from sqlalchemy.orm import Session

from aggregator_api.federations.service import NewFederation, get_federation
from aggregator_api.rollouts import scores
from aggregator_api.runtime import Runtime
from aggregator_api.storage.db.models import (
    AdoptionRow,
    DeviceRow,
    DeviceTagRow,
    EnrolmentTokenRow,
    EventRow,
    FederationRow,
    MetricRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RolloutDeviceRow,
    RolloutRow,
    RoundRow,
    UpdateRow,
)
from federation.plan import Plan
from tests.aggregator_api.generated_devices import SMALL

WALKS = "walks"
LABELS = ("sitting", "standing", "walking", "climbingup", "climbingdown", "running")
HOSTILE = '<img src=x onerror="window.hurt=1">'
"""What a device may call itself, or say, in a place that nothing has validated."""


def plan(**changes: object) -> Plan:
    """A small network for six activities, ten rounds."""
    return Plan.model_validate(
        {
            "labels": LABELS,
            "model": {"name": "har_cnn", "options": SMALL},
            "method": {"name": "fedavg"},
            "training": {"classes": len(LABELS), "feature_dim": 8, "epochs": 5},
            "rounds": {"rounds": 20, "minimum_clients": 2, "deadline_s": 900},
            "rollout": {"mode": "manual"},
            **changes,
        }
    )


def seed(runtime: Runtime, *, devices: int = 12, rounds: int = 14, rollout: bool = True, hostile: bool = True) -> None:
    """Fill the server's database; the same numbers give the same scores. `hostile`: names and words that attack."""
    for name in (WALKS, "gestures"):
        runtime.federations.create(NewFederation(name=name, plan=plan()))
    with runtime.database.write() as session:
        seeder = Seeder(session, get_federation(session, WALKS), devices, HOSTILE if hostile else "phone-other")
        seeder.fill(rounds, rollout=rollout)
    runtime.federations.pause("gestures")


class Seeder:
    """Writes what a federation would have written."""

    def __init__(self, session: Session, federation: FederationRow, devices: int, words: str = HOSTILE) -> None:
        self._session, self._federation, self._words = session, federation, words
        self._random = Random(1)
        self._now = time.time()
        self._devices = [self._device(k) for k in range(devices)]

    def fill(self, rounds: int, *, rollout: bool = True) -> None:
        """Write devices, rounds, a rollout, tokens and updates in quarantine."""
        for number in range(1, rounds + 1):
            self._round(number, rounds, is_open=number == rounds)
        self._quarantine(rounds - 1)
        if rollout:
            self._rollout()
        for k in range(3):
            self._token(k)
        for name, detail in ((self._words, self._words), ("phone-new", "")):
            self._session.add(self._row(name, "collecting", detail=detail, enrolment="pending"))
        self._session.flush()

    def _row(self, name: str, state: str, *, detail: str = "", enrolment: str = "approved") -> DeviceRow:
        return DeviceRow(
            federation_id=self._federation.id,
            name=name,
            state=state,
            examples=200 + self._random.randrange(400),
            detail=detail,
            enrolled_at=self._now - 86_400,
            seen_at=self._now - self._random.randrange(600),
            enrolment=enrolment,
            adoption="adopted",
            adoption_reason="better on its own holdout",
        )

    def _device(self, k: int) -> DeviceRow:
        state, detail = [
            ("training", ""),
            ("ready", "the battery is at 18 %, 30 % are needed"),
            ("ready", ""),
            ("offline", ""),
        ][min(k, 3) if k < 4 else 2]
        row = self._row(f"phone-{k + 1:02d}", state, detail=detail)
        self._session.add(row)
        self._session.flush()
        if k % 4 == 0:
            self._session.add(DeviceTagRow(device_id=row.id, tag="pilot"))
        return row

    def _event(self, kind: str, at: float, *, number: int = 0, device: str = "", detail: str = "") -> None:
        self._session.add(
            EventRow(
                federation_id=self._federation.id,
                kind=kind,
                round_number=number,
                device=device,
                detail=detail,
                created_at=at,
            )
        )

    def _version(self, number: int, at: float) -> ModelVersionRow:
        sha256 = f"{number:064x}"
        row = ModelVersionRow(
            federation_id=self._federation.id,
            version=number,
            round_number=number,
            state_sha256=sha256,
            broadcast_sha256=sha256,
            broadcast_size=48_000,
            created_at=at,
        )
        self._session.add(row)
        self._session.flush()
        for alias in ("latest", "stable"):
            self._session.merge(ModelAliasRow(federation_id=self._federation.id, alias=alias, version_id=row.id))
        return row

    def _stable(self) -> ModelVersionRow:
        alias = self._session.get(ModelAliasRow, (self._federation.id, "stable"))
        assert alias is not None
        found = self._session.get(ModelVersionRow, alias.version_id)
        assert found is not None
        return found

    def _round(self, number: int, rounds: int, *, is_open: bool) -> None:
        begin = self._now - 300 * (rounds - number) - (60 if is_open else 0)
        failed = number == 6
        phase = "collecting" if is_open else "failed" if failed else "published"
        reason = "1 update came before the deadline, 2 are needed" if failed else ""
        waiting = 3 if is_open else 0
        row = RoundRow(
            federation_id=self._federation.id,
            number=number,
            phase=phase,
            paused=False,
            deadline_passed=failed,
            reason=reason,
            pending=waiting,
            received=len(self._devices) - waiting,
            epsilon=0.4 * math.sqrt(number),
            noise_multiplier=1.0,
            base_version_id=self._stable().id,
            deadline_at=begin + 900,
            opened_at=begin,
            closed_at=None if is_open else begin + 200,
        )
        self._session.add(row)
        self._session.flush()
        self._event("round.announced", begin - 4, number=number, detail=f"{len(self._devices)} invited")
        self._event("round.collecting", begin, number=number)
        for k, device in enumerate(self._devices):
            self._part(row, k, device, begin, is_open=is_open)
        if not is_open:
            self._event("round.aggregating", begin + 185, number=number)
            self._event(f"round.{phase}", begin + 200, number=number, detail=reason)
            if not failed:
                self._version(number, begin + 200)
                self._event("model.published", begin + 200, number=number, detail=f"version {number}")

    def _part(self, row: RoundRow, k: int, device: DeviceRow, begin: float, *, is_open: bool) -> None:
        outcome = "waiting" if is_open and k < 3 else "lost" if k == 3 and row.number % 3 == 0 else "received"
        if k == 5 and row.number % 4 == 0:
            return  # it was not drawn
        part = ParticipationRow(
            round_id=row.id,
            device_id=device.id,
            invited=True,
            outcome=outcome,
            rounds_late=1 if k == 4 and row.number % 5 == 0 else 0 if outcome == "received" else None,
            broadcast_sha256="0" * 64,
            broadcast_size=48_000,
        )
        self._session.add(part)
        if outcome != "received":
            return
        self._update(device, row.number, "accepted", round_id=row.id)
        score = 0.9 - 0.5 * math.exp(-row.number / 5) - 0.02 * k + self._random.gauss(0, 0.02)
        values = {"macro_f1_before": score - 0.05, "macro_f1_after": score, "train_loss": 1.4 - score}
        for label in range(len(LABELS)):
            values[f"class_{label}_after"] = max(0.0, min(1.0, score + 0.05 * (2.5 - label) / 2))
        common = {"federation_id": self._federation.id, "device_id": device.id, "round_number": row.number}
        for name, value in values.items():
            self._session.add(MetricRow(**common, name=name, value=value, recorded_at=begin + 100))
        scores.add_figures(self._session, self._federation.id, row.number, values)
        adopted = score > 0.6
        adoption = AdoptionRow(
            **common,
            source="global",
            answer="adopted" if adopted else "kept",
            score=score,
            trivial=0.1,
            reason="" if adopted else "not shown to be better than the present one",
            recorded_at=begin + 190,
        )
        self._session.add(adoption)
        scores.add_judgement(self._session, adoption, "macro_f1")

    def _update(
        self, device: DeviceRow, number: int, status: str, *, round_id: int | None = None, reason: str = ""
    ) -> None:
        manifest = {
            "update_id": f"{device.name}-{number}-{status}"[:64],
            "federation": WALKS,
            "instance": self._federation.instance,
            "client": "phone",
            "round": number,
            "method": "fedavg",
            "base_version": "0" * 64,
            "examples": device.examples,
            "steps": 10,
            "size": 41_000,
            "sha256": "1" * 64,
            "chunk_bytes": 1024,
            "nonce": "n" * 16,
            "created": self._now,
        }
        self._session.add(
            UpdateRow(
                federation_id=self._federation.id,
                device_id=device.id,
                round_id=round_id,
                update_id=manifest["update_id"],
                base_round=number,
                status=status,
                reason=reason,
                sha256="1" * 64,
                size=41_000,
                manifest=manifest,
                received_at=self._now - 3600,
            )
        )

    def _quarantine(self, number: int) -> None:
        device = self._devices[-1]
        self._update(device, number, "quarantined", reason=f"conv1.weight has NaN {self._words}")
        self._event("update.quarantined", self._now - 500, number=number, device=device.name, detail=self._words)

    def _rollout(self) -> None:
        settings = plan().rollout.model_dump(mode="json")
        version = self._stable()
        row = RolloutRow(
            federation_id=self._federation.id,
            number=1,
            version_id=version.id,
            settings=settings,
            serial=1,
            phase="halted",
            wave=1,
            wave_started_at=self._now - 900,
            members=4,
            successes=1,
            failures=2,
            reason="2 of 3 devices that answered failed",
            last_checked_device_id=0,
            started_at=self._now - 4000,
            ended_at=self._now - 800,
        )
        self._session.add(row)
        self._session.flush()
        answers = ("adopted", "failed", "rolled_back", "pending")
        for k, (device, answer) in enumerate(zip(self._devices, answers, strict=False)):
            self._session.add(
                RolloutDeviceRow(
                    rollout_id=row.id,
                    device_id=device.id,
                    wave=min(k, 1),
                    answer=answer,
                    score=0.7,
                    reason="" if answer == "adopted" else "worse than the most frequent class",
                    notified_at=self._now - 3900,
                    answered_at=self._now - 3000,
                )
            )

    def _token(self, k: int) -> None:
        self._session.add(
            EnrolmentTokenRow(
                federation_id=self._federation.id,
                token_sha256=f"{self._federation.id:032x}{k:032x}",
                device=None if k == 1 else f"phone-{k + 1:02d}",
                auto_approve=k == 2,
                tags=["pilot"] if k else [],
                created_at=self._now - 7200,
                expires_at=self._now + 80_000,
                used_at=self._now - 7000 if k == 0 else None,
                used_by="phone-01" if k == 0 else None,
            )
        )
