"""What needs the operator's attention, for the server and each federation."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.auth import api_keys
from aggregator_api.devices import suspension
from aggregator_api.operations.counts import deliveries
from aggregator_api.operations.health import NO_BROKER, Readiness
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import (
    CredentialRow,
    DeviceRow,
    EnrolmentTokenRow,
    FederationRow,
    RolloutRow,
    RoundRow,
    UpdateRow,
)
from federation.rounds.server_round import RoundPhase
from gaitway.threads import thread_failures

DAY_S = 86_400.0
EXPIRY_WARNING_S = 30 * DAY_S
"""Remaining validity below which a certificate or key is reported."""
QUARANTINE_WARNING_S = DAY_S
MAX_NAMED = 3
"""Time for which quarantined updates are reported."""
ADVICE = {
    NO_BROKER: ": only devices that speak HTTP can take part until it is. The server's log says what it tries; "
    "`python -m aggregator_api broker` starts a small broker for trials"
}
"""Advice for problems in the public readiness check."""
Level = Literal["error", "warning", "note"]


class AttentionItem(NamedTuple):
    """One thing to look at; `page_path` is the page about it, below its federation.

    `thing` names it for as long as it lasts, whatever its figures are meanwhile; `is_own`: it is of this process, and
    not of all that share the database.
    """

    level: Level
    message: str
    federation: str = ""
    page_path: str = ""
    thing: str = ""
    is_own: bool = False


def of_server(session: Session, readiness: Readiness, now: float) -> list[AttentionItem]:
    """Tell what does not work, and what ends soon."""
    found = []
    for problem in readiness.problems():
        words = problem[0].upper() + problem[1:] + ADVICE.get(problem, "") + "."
        found.append(AttentionItem("error", words, thing=problem.partition(":")[0], is_own=True))
    for failure in thread_failures.recent():
        found.append(AttentionItem("warning", failure.describe(now), thing=f"thread {failure.thread}", is_own=True))
    for failed in deliveries.failing():
        minutes = _counted(round(max(0.0, now - failed.at) / 60), "minute")
        words = f"The last notification by {failed.channel} was not taken, {minutes} ago: {failed.reason}. "
        words += "`python -m aggregator_api notify test` tries it again."
        found.append(AttentionItem("warning", words, thing=failed_channel(failed.channel), is_own=True))
    for name, expiry in readiness.certificates().items():
        if expiry < now + EXPIRY_WARNING_S:
            level: Level = "error" if expiry <= now else "warning"
            words = f"The certificate of {name} {_ends(expiry, now)}."
            found.append(AttentionItem(level, words, thing=f"certificate of {name}", is_own=True))
    held = session.scalar(select(func.count()).where(CredentialRow.held_at.is_not(None))) or 0
    if held:
        words = f"{_counted(held, 'key')} open{'s' if held == 1 else ''} nothing since the server was restored without "
        words += "its ledger; confirm those that were not revoked: `python -m aggregator_api keys confirm`."
        found.append(AttentionItem("warning", words, thing="keys to confirm"))
    for row, federation in api_keys.every(session):
        if _ends_soon(row, now):
            where = f" for {federation}" if federation else ""
            words = f"The key {row.name} ({row.prefix}){where} {_ends(row.expires_at or 0, now)}."
            found.append(AttentionItem("note", words, thing=f"key {row.prefix}"))
    return found


def failed_channel(channel: str) -> str:
    """Name the thing that a channel of notifications fails."""
    return f"notifications by {channel}"


def of_federation(session: Session, row: FederationRow, now: float | None = None) -> list[AttentionItem]:
    """Tell what of a federation waits for its operator, the worst first."""
    now = time.time() if now is None else now
    found = [
        *_withdrawn(session, row),
        *_measures(row),
        *_rollout(session, row),
        *_round(session, row),
        *_quarantine(session, row, now),
        *_devices(session, row),
        *_nobody_online(session, row),
    ]
    return worst_first(found)


def worst_first(found: list[AttentionItem]) -> list[AttentionItem]:
    """Sort by level, keeping the order within each level."""
    order: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda item: order[item.level])


def _withdrawn(session: Session, row: FederationRow) -> list[AttentionItem]:
    """Tell that the newest version was withdrawn, until there is another one."""
    newest = repositories.newest_version(session, row)
    if not newest.withdrawn:
        return []
    words = f"{newest.withdrawn}. It was withdrawn; look at what went into round {newest.round_number}."
    return [AttentionItem("error", words, row.name, "models", "withdrawn version")]


def _measures(row: FederationRow) -> list[AttentionItem]:
    """Tell what devices have measured to be worse, and that `stable` stays behind for it."""
    worse = row.regression.splitlines()
    found = [AttentionItem("error", f"Worse than before: {reason}.", row.name, "models", "worse") for reason in worse]
    if row.stable_note and row.status in ("finished", "stopped"):
        found.append(
            AttentionItem("warning", f"The name stable stays: {row.stable_note}.", row.name, "models", "stable")
        )
    return found


def _rollout(session: Session, row: FederationRow) -> list[AttentionItem]:
    query = select(RolloutRow).where(RolloutRow.federation_id == row.id).order_by(RolloutRow.number.desc()).limit(1)
    latest = session.scalar(query)
    if latest is not None and latest.phase == "rolling" and latest.reason:
        words = f"Rollout {latest.number} waits, {latest.reason}."
        return [AttentionItem("warning", words, row.name, f"rollouts/{latest.number}", f"rollout {latest.number}")]
    if latest is None or latest.phase != "halted":
        return []
    words = f"Rollout {latest.number} was halted: {latest.reason or 'no reason was given'}."
    return [AttentionItem("error", words, row.name, f"rollouts/{latest.number}", f"rollout {latest.number}")]


def _round(session: Session, row: FederationRow) -> list[AttentionItem]:
    query = select(RoundRow).where(RoundRow.federation_id == row.id).order_by(RoundRow.number.desc()).limit(1)
    latest = session.scalar(query)
    if latest is None or latest.phase != RoundPhase.FAILED or row.status == "stopped":
        return []
    words = f"Round {latest.number} failed: {latest.reason}."
    failed = repositories.progress(session, row).failed_in_a_row
    if failed > 1:
        words = f"{failed:,} rounds in a row have failed, the last one ({latest.number}) because: {latest.reason}."
    if row.status == "paused":
        words += " The federation is paused; see to the cause, and resume it."
    return [AttentionItem("error", words, row.name, "", "rounds")]


def _quarantine(session: Session, row: FederationRow, now: float) -> list[AttentionItem]:
    query = select(func.count(), func.count(UpdateRow.device_id.distinct())).where(
        UpdateRow.federation_id == row.id,
        UpdateRow.status == "quarantined",
        UpdateRow.received_at > now - QUARANTINE_WARNING_S,
    )
    updates, devices = session.execute(query).one()
    if not updates:
        return []
    words = f"{_counted(updates, 'update')} of {_counted(devices, 'device')} went into quarantine within a day."
    return [AttentionItem("warning", words, row.name, "updates", "quarantine")]


def _devices(session: Session, row: FederationRow) -> list[AttentionItem]:
    query = select(func.count()).select_from(DeviceRow).where(DeviceRow.federation_id == row.id)
    pending = session.scalar(query.where(DeviceRow.enrolment == "pending")) or 0
    cloned = session.scalar(query.where(DeviceRow.cloned_at.is_not(None), DeviceRow.enrolment != "revoked")) or 0
    suspended = suspension.count_suspended(session, row)
    found = _unused(session, row)
    if refusals := suspension.counts(session, row):
        words = f"{suspension.describe_refusals(refusals)}. No round counts on them until the plan promises "
        words += "what they require, or a person at each of them accepts it."
        found.append(AttentionItem("warning", words, row.name, "devices", "refused plan"))
    if suspended:
        words = (
            f"{_counted(suspended, 'device')} {'is' if suspended == 1 else 'are'} suspended: several updates in a row "
            f"were refused. Look at why, and reinstate {'it' if suspended == 1 else 'them'}, or revoke."
        )
        found.append(AttentionItem("warning", words, row.name, "devices?suspended=true", "suspended devices"))
    if cloned:
        words = f"Two programs have used the name of {_counted(cloned, 'device')} at the same time."
        found.append(AttentionItem("warning", words, row.name, "devices", "cloned devices"))
    tokens = select(func.count()).where(EnrolmentTokenRow.federation_id == row.id)
    held = session.scalar(tokens.where(EnrolmentTokenRow.held_at.is_not(None))) or 0
    if held:
        words = f"{_counted(held, 'enrolment token')} let nobody in since the server was restored, until you confirm "
        words += "it." if held == 1 else "them."
        found.append(AttentionItem("warning", words, row.name, "enrolment", "tokens to confirm"))
    if pending:
        words = f"{_counted(pending, 'device')} {'waits' if pending == 1 else 'wait'} for your approval."
        found.append(AttentionItem("warning", words, row.name, "enrolment", "waiting devices"))
    return found


def _unused(session: Session, row: FederationRow) -> list[AttentionItem]:
    """Tell which devices train in vain, before they are suspended."""
    may_train = (DeviceRow.federation_id == row.id, DeviceRow.enrolment != "revoked", DeviceRow.suspended_at.is_(None))
    names = list(
        session.scalars(
            select(DeviceRow.name).where(*may_train, DeviceRow.refused_updates > 1).order_by(DeviceRow.name)
        )
    )
    if not names:
        return []
    listed = ", ".join(names[:MAX_NAMED]) + (" and others" if len(names) > MAX_NAMED else "")
    words = f"The last updates of {_counted(len(names), 'device')} were all refused or left out of their rounds: "
    words += f"{listed}. The journal says why (update.excluded, update.quarantined)."
    return [AttentionItem("warning", words, row.name, "updates", "unused updates")]


def _nobody_online(session: Session, row: FederationRow) -> list[AttentionItem]:
    """Tell that a running federation has devices, and none is connected; phones of a continuous one rest more often."""
    query = select(func.count(), func.count().filter(DeviceRow.state != "offline"))
    devices, connected = session.execute(query.where(DeviceRow.federation_id == row.id)).one()
    if row.status != "running" or not devices or connected:
        return []
    who = "The only device is" if devices == 1 else f"All {devices:,} devices are"
    words = f"{who} offline; gaitway agent doctor, run on a device, says why."
    level: Level = "note" if row.kind.sums else "warning"
    return [AttentionItem(level, words, row.name, "devices", "no device online")]


def _ends_soon(row: CredentialRow, now: float) -> bool:
    ends = row.expires_at is not None and now < row.expires_at < now + EXPIRY_WARNING_S
    return ends and row.revoked_at is None and "operator" in row.scopes and row.device_id is None


def _ends(when: float, now: float) -> str:
    if when <= now:
        return "has expired"
    days = (when - now) / DAY_S
    return "expires within a day" if days < 1 else f"expires in {_counted(round(days), 'day')}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
