"""Decides from its manifest whether an update is accepted, before its bytes are received and again after."""

from __future__ import annotations

import base64
import time
from typing import NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from aggregator_api.auth.signing import verify
from aggregator_api.core.errors import UpdateRefusedError
from aggregator_api.rounds.updates.context import (
    BaseRound,
    DeviceInfo,
    FederationInfo,
    KnownUpdate,
    OpenRound,
    UpdateContext,
)
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.db.models import DeviceRow
from federation.plan import RoundSettings
from federation.protocol.messages import MAX_AHEAD_MS, UpdateManifest
from federation.protocol.signing import Envelope, Kind, to_sign
from federation.rounds.server_round import Action, RoundPhase, UpdateArrived, step


class Sender(NamedTuple):
    """Who an update is from."""

    federation: FederationInfo
    device: DeviceInfo


def rejection_reason(row: DeviceRow | None, federation: str, device: str, *, enrolled_only: bool) -> str:
    """Say why nothing is taken from a device, which may have no row yet; empty if it may take part."""
    return _rejection_reason(row.enrolment if row else "open", federation, device, enrolled_only)


def disconnect_unapproved(session: Session) -> None:
    """Let no round count on devices that came in while no approval was needed."""
    present = DeviceRow.state != "offline"
    session.execute(update(DeviceRow).where(DeviceRow.enrolment != "approved", present).values(state="offline"))


def sender(context: UpdateContext, federation: str, device: str, *, enrolled_only: bool = False) -> Sender:
    """Return the federation and the device that a topic names.

    Raises:
        UpdateRefusedError: if one of them is not known here, or the device may not take part.
    """
    if context.federation is None:
        raise UpdateRefusedError(f"there is no federation {federation!r} on this server")
    enrolment = context.device.enrolment if context.device else "open"
    if reason := _rejection_reason(enrolment, federation, device, enrolled_only):
        raise UpdateRefusedError(reason)
    if context.device is None:
        raise UpdateRefusedError(f"device {device!r} is not enrolled in {federation!r}; publish a status first")
    if context.device.is_suspended:
        raise UpdateRefusedError(
            f"device {device!r} is suspended, for several of its updates in a row were refused; the operator lets it "
            "back (POST …/reinstate)"
        )
    return Sender(context.federation, context.device)


def admit(context: UpdateContext, manifest: UpdateManifest, topic: tuple[str, str, str], contract: Contract) -> None:
    """Check that the manifest is the device's own, fits the federation, and that the round would take it now.

    `topic`: the federation, device and update id that it came on.

    Raises:
        UpdateRefusedError: saying what came and what was expected.
    """
    claimed = (manifest.federation, manifest.client, manifest.update_id)
    if claimed != topic:
        raise UpdateRefusedError(
            f"the manifest is of {'/'.join(claimed)}, but came on the topic of {'/'.join(topic)}", quarantine=True
        )
    device = _device(context)
    if context.federation and manifest.instance != context.federation.instance:
        raise UpdateRefusedError(f"the update is of an earlier federation {manifest.federation!r}; this is another one")
    contract.check_manifest(manifest)
    if manifest.sum not in (None, "keys"):
        return  # the round has closed: where its secure sum stands decides
    if contract.kind.keeps_sums:
        _check_sequence(context, manifest)
        return
    _check_base(context.base, device, manifest)
    _check_round(context, device, manifest, contract.plan.rounds)


def forged(context: UpdateContext, key: tuple[str, str, str], envelope: Envelope) -> str:
    """Say why a manifest is not the word of the device that it came from; empty if it is, or if that has no key here.

    `key`: the federation, device and update id that it came on.
    """
    device = context.device
    if device is None or device.enrolment != "approved" or device.public_key is None:
        return ""
    if envelope.signature is None:
        return f"the manifest is not signed, but device {device.name!r} has enrolled and must sign with its key"
    signed = to_sign(Kind.UPDATE, key[0], key[1], envelope.body)
    if verify(base64.b64decode(device.public_key), envelope.signature, signed):
        return ""
    return f"the manifest is not signed by the key that {device.name!r} has enrolled with; enrol the device anew"


def must_wait(context: UpdateContext, settings: RoundSettings) -> bool:
    """Whether no round collects now, but one will that takes late updates: what comes meanwhile is kept for it."""
    federation = context.federation
    if settings.late != "next" or federation is None or federation.status not in ("running", "paused"):
        return False
    phase = context.open.round.phase if context.open else None
    if phase in (RoundPhase.COLLECTING, RoundPhase.ANNOUNCED):
        return phase is RoundPhase.ANNOUNCED
    # the round that is being aggregated will count: after the last one there is no other
    return federation.published + (phase is RoundPhase.AGGREGATING) < settings.rounds


def _rejection_reason(enrolment: str, federation: str, device: str, enrolled_only: bool) -> str:
    if enrolment == "revoked":
        return f"device {device!r} was revoked by the operator"
    if not enrolled_only or enrolment == "approved":
        return ""
    if enrolment == "pending":
        return f"device {device!r} awaits the operator's approval"
    return f"device {device!r} is not enrolled in {federation!r}; enrol it with a token"


def _device(context: UpdateContext) -> DeviceInfo:
    if context.device is None:
        raise UpdateRefusedError("the device is not enrolled here")  # `sender` has said so before
    return context.device


def repeats(context: UpdateContext, manifest: UpdateManifest) -> bool:
    """Whether an update of a continuous federation is the one that was accepted last of its device, once more."""
    return context.contributed == (manifest.sequence, manifest.sha256)


def differs(known: KnownUpdate, manifest: UpdateManifest) -> str:
    """Say in what an update differs from the accepted one of the same id; empty if it is the same once more."""
    if known.sha256 != manifest.sha256:
        return "this update id was accepted with other bytes; use a new one"
    if known.sequence != manifest.sequence:
        return (
            f"this update id was accepted as number {known.sequence}, and number {manifest.sequence} came; give every "
            "number an id of its own, such as s{sequence}-{device}"
        )
    return ""


def _check_sequence(context: UpdateContext, manifest: UpdateManifest) -> None:
    federation, last = context.federation, context.contributed
    if federation is not None and federation.status not in ("running", "paused"):
        raise UpdateRefusedError(f"the federation {federation.name!r} is {federation.status}: it takes no more sums")
    number, now_ms = manifest.sequence or 0, int(1000 * time.time())
    if number > now_ms + MAX_AHEAD_MS:
        raise UpdateRefusedError(
            f"the update is number {number}, and the server's time is {now_ms} ms since 1970: a number is at most "
            "a day ahead of that; set the device's clock"
        )
    if last is not None and number <= last.sequence:
        raise UpdateRefusedError(
            f"the update is number {manifest.sequence} of {manifest.client!r}, and number {last.sequence} was accepted "
            "already: it is older; send the present sums with a higher number"
        )


def _check_base(base: BaseRound | None, device: DeviceInfo, manifest: UpdateManifest) -> None:
    if base is None:
        raise UpdateRefusedError(f"round {manifest.round} has not begun")
    if not base.invited:
        raise UpdateRefusedError(f"{device.name} is not in the cohort of round {manifest.round}")
    if manifest.base_version != base.broadcast_sha256:
        raise UpdateRefusedError(
            f"the update started from {manifest.base_version[:12]}…, {device.name} got "
            f"{str(base.broadcast_sha256)[:12]}… in round {manifest.round}",
            quarantine=True,
        )


def _check_round(context: UpdateContext, device: DeviceInfo, manifest: UpdateManifest, settings: RoundSettings) -> None:
    if not must_wait(context, settings):
        if context.open is None:
            raise UpdateRefusedError(f"no round is open; round {manifest.round} is over")
        _ask(context.open, device, manifest, settings)
    if context.reported:
        raise UpdateRefusedError(f"{device.name} has already reported for round {manifest.round}")


def _ask(now: OpenRound, device: DeviceInfo, manifest: UpdateManifest, settings: RoundSettings) -> None:
    # the machine is pure: asking it changes nothing, and its answer is the one that counts later
    answer = step(settings, now.round, UpdateArrived(device.name, manifest.round), now.status)
    if Action.REFUSE in answer.actions:
        raise UpdateRefusedError(answer.reason)
