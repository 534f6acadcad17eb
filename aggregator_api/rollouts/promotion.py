"""Moves models' names by devices' scores: `stable` automatically, any other on an operator's request.

`latest` is what rounds start from, and every round moves it. `stable` follows once enough devices have measured a newer
version and it is not worse, as `federation.rounds.promotion` decides; `previous` is the version that it named before.
What an operator moves stays: the server itself moves `stable` only to versions that are made later.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import ConflictError
from aggregator_api.rollouts import measures
from aggregator_api.rollouts.scores import metric_in
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import (
    DeviceRow,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
    RolloutRow,
    RoundRow,
)
from federation.plan import PromotionSettings
from federation.rounds.promotion import Bar, Decision, PromotionVerdict, VersionComparison, judge, needed_devices
from federation.rounds.server_round import RoundPhase
from gaitway.tasks import metric_of

MAX_CANDIDATES = 8
"""Versions newer than `stable` that are looked at: older ones are measured no more."""


class PromotionCandidate(NamedTuple):
    """A version that `stable` might move to, and what is known of it."""

    version: ModelVersionRow
    measured: int
    verdict: PromotionVerdict


def settings_of(federation: FederationRow) -> PromotionSettings:
    """Return when a federation's names move; plans of earlier versions say nothing about it."""
    return PromotionSettings.model_validate(federation.plan.get("promotion", {}))


def verdict_of(
    session: Session, federation: FederationRow, new: ModelVersionRow, old: ModelVersionRow | None
) -> PromotionVerdict:
    """Return devices' verdict on a version compared with the one that it would replace."""
    return _examined(session, federation, new, old).verdict


def name_of(session: Session, federation: FederationRow, alias: str) -> ModelAliasRow | None:
    """Find a name of a federation's models."""
    return session.get(ModelAliasRow, (federation.id, alias))


def named_version(session: Session, federation: FederationRow, alias: str) -> ModelVersionRow | None:
    """Return the version of that name, if there is one."""
    row = name_of(session, federation, alias)
    return None if row is None else session.get(ModelVersionRow, row.version_id)


def move_by_operator(
    session: Session, federation: FederationRow, alias: str, version: ModelVersionRow, force: str
) -> None:
    """Let a name stand for a version: freely if it is new, else if the measure allows it, or for the reason `force`.

    Raises:
        ConflictError: if the measure does not allow it, with what it says.
    """
    present = named_version(session, federation, alias)
    if present is not None and present.id == version.id:
        return
    words = "named by an operator"
    if present is not None:
        found = verdict_of(session, federation, version, present)
        if found.decision is not Decision.BETTER and not force:
            raise ConflictError(
                f"{alias!r} stays at version {present.version}, as version {version.version} is not shown to be as "
                f'good: {found.reason}. Wait for more measures, or move it all the same: "force": true and a "reason"'
            )
        words = f"forced by an operator ({force}); the measure says" if force else "moved by an operator"
        words = f"{words}: {found.reason}"
    _move(session, federation, alias, version, words, by_operator=True)
    promote(session, federation)


def promote(session: Session, federation: FederationRow) -> None:
    """Move `stable` to the newest version that scores as well, and record why not further, and regressions.

    It works inside the caller's transaction, and changes nothing where nothing has changed.
    """
    taken, candidates = _candidates(session, federation)
    if taken is not None:
        _move(session, federation, "stable", taken.version, taken.verdict.reason)
    _note_waiting(session, federation, candidates)
    _note_regression(session, federation, candidates)


def _examined(
    session: Session, federation: FederationRow, new: ModelVersionRow, old: ModelVersionRow | None
) -> PromotionCandidate:
    found = measures.compare(session, federation, new.id, None if old is None else old.id)
    other, trained = None if old is None else f"version {old.version}", old is None or old.round_number > 0
    return PromotionCandidate(new, found.measured, _judged(session, federation, found, other, trained))


def _judged(
    session: Session, federation: FederationRow, found: VersionComparison, other: str | None, trained: bool = True
) -> PromotionVerdict:
    settings, cohort = settings_of(federation), federation.plan.get("rounds", {}).get("clients_per_round")
    may = (DeviceRow.federation_id == federation.id, DeviceRow.enrolment.in_(measures.MAY_MEASURE))
    devices = session.scalar(select(func.count(DeviceRow.id)).where(*may)) or 0
    needed, metric = needed_devices(settings, devices, cohort), metric_of(metric_in(federation))
    return judge(found, Bar(needed, devices, settings.margin, metric), other=other, trained=trained)


def _candidates(
    session: Session, federation: FederationRow
) -> tuple[PromotionCandidate | None, list[PromotionCandidate]]:
    """Return the version that `stable` moves to, if any, and those beyond it or beyond `stable`, the newest first.

    Each is compared with the newest one before it that was as good, so that the outcome does not depend on when the
    measures are looked at.
    """
    present, name = named_version(session, federation, "stable"), name_of(session, federation, "stable")
    if present is None or name is None:
        return None, []
    row = ModelVersionRow
    newer = select(row).where(row.federation_id == federation.id, row.deleted_at.is_(None), row.withdrawn == "")
    newer = newer.where(row.version > max(present.version, name.held_at)).order_by(row.version.desc())
    halted = select(RolloutRow.version_id).where(
        RolloutRow.federation_id == federation.id, RolloutRow.phase == "halted"
    )
    newer = newer.where(row.id.not_in(halted))  # devices went back from it, or an operator withdrew it
    taken: PromotionCandidate | None = None
    later: list[PromotionCandidate] = []
    for version in reversed(session.scalars(newer.limit(MAX_CANDIDATES)).all()):
        found = _examined(session, federation, version, present)
        if found.verdict.decision is Decision.BETTER:
            taken, present, later = found, version, []
        else:
            later.insert(0, found)
    return taken, later


def _move(
    session: Session,
    federation: FederationRow,
    alias: str,
    version: ModelVersionRow,
    note: str,
    *,
    by_operator: bool = False,
) -> None:
    row = name_of(session, federation, alias)
    if alias == "stable" and row is not None:
        target = {"federation_id": federation.id, "version_id": row.version_id}
        session.merge(ModelAliasRow(**target, alias="previous", note=row.note))
    held_at = 0 if row is None else row.held_at
    if by_operator:
        newest = select(func.max(ModelVersionRow.version)).where(ModelVersionRow.federation_id == federation.id)
        held_at = session.scalar(newest) or 0
    session.merge(
        ModelAliasRow(federation_id=federation.id, alias=alias, version_id=version.id, note=note, held_at=held_at)
    )
    session.flush()
    detail = f"{alias} = version {version.version}: {note}"
    repositories.journal(session, federation, "model.alias", round_number=version.round_number, detail=detail)


def _note_waiting(session: Session, federation: FederationRow, candidates: list[PromotionCandidate]) -> None:
    """Write why `stable` stays: of the newest version that is worse, else of the one that most have measured."""
    worse = [candidate for candidate in candidates if candidate.verdict.decision is Decision.WORSE]
    named = (worse or sorted(candidates, key=lambda candidate: -candidate.measured))[:1]
    stays = "is not taken" if worse else "has to wait"
    note = "".join(f"version {candidate.version.version} {stays}: {candidate.verdict.reason}" for candidate in named)
    before, federation.stable_note = federation.stable_note, note
    # a version that was just made waits until it is measured, which is no news
    is_news = bool(worse) or federation.status in ("finished", "stopped") or named != candidates[:1]
    if note and is_news and _heads(note) != _heads(before):
        number = named[0].version.round_number
        repositories.journal(session, federation, "model.held", round_number=number, detail=f"stable stays: {note}")


def _note_regression(session: Session, federation: FederationRow, candidates: list[PromotionCandidate]) -> None:
    found = "\n".join(_regressions(session, federation, candidates))
    before, federation.regression = federation.regression, found
    if _heads(found) == _heads(before):
        return
    kind, detail = ("model.regressed", found) if found else ("model.recovered", before)
    number = repositories.last_number(session, federation)
    repositories.journal(session, federation, kind, round_number=number, detail=detail.replace("\n", "; "))


def _regressions(session: Session, federation: FederationRow, candidates: list[PromotionCandidate]) -> list[str]:
    """Return the versions that score worse than their predecessors."""
    found = []
    present, before = (named_version(session, federation, alias) for alias in ("stable", "previous"))
    if present is not None and before is not None and present.id != before.id:
        verdict = verdict_of(session, federation, present, before)
        if verdict.decision is Decision.WORSE:
            found.append(f"stable, version {present.version}, against the version that it replaced: {verdict.reason}")
    decided = [candidate for candidate in candidates if candidate.verdict.decision is not Decision.UNDECIDED]
    if decided and decided[0].verdict.decision is Decision.WORSE:
        worse = decided[0]
        found.append(f"version {worse.version.version}, which rounds have made since: {worse.verdict.reason}")
    row = RoundRow
    ended = select(row.number).where(row.federation_id == federation.id, row.phase == RoundPhase.PUBLISHED)
    last = session.scalars(ended.order_by(row.number.desc()).limit(2)).all()
    if len(last) == 2:
        learnt = measures.compare_trained(session, federation, last[0], last[1])
        verdict = _judged(session, federation, learnt, f"round {last[1]}")
        if verdict.decision is Decision.WORSE:
            found.append(f"what devices learnt in round {last[0]}: {verdict.reason}")
    return found


def _heads(text: str) -> list[str]:
    """Return what a text is about, without the figures."""
    return [line.partition(":")[0] for line in text.splitlines()]
