"""The rows of a round's secure sum; every function works inside its caller's transaction.

What a device sends is a row before it has an effect, and so is the end of each stage. The state machine itself is
`federation.secure_sums.server`: here its state is read from rows and written back to them.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_api.core.errors import UpdateRefusedError
from aggregator_api.devices import contributions, vouching
from aggregator_api.rounds.updates.context import DeviceInfo
from aggregator_api.storage.db import epochs, repositories
from aggregator_api.storage.db.models import Blob, DeviceRow, FederationRow, RoundRow, SecureSumDeviceRow, SecureSumRow
from federation.plan import RoundSettings, SecureSettings
from federation.protocol.messages import BlobPointer, SumOrder, SumPart, UpdateManifest
from federation.rounds.server_round import RoundPhase
from federation.secure_sums import server
from federation.secure_sums.live import request_for
from federation.secure_sums.membership import membership
from federation.secure_sums.messages import FromDevice, SumRequest, ToDevice, read, written
from federation.secure_sums.retries import Retry, SumFinding
from federation.secure_sums.server import ServerStage, ServerState
from federation.secure_sums.summation import layout_from_json
from federation.secure_sums.uploads import MAX_LIVE_MEMBERS, limit_of, unpacked

SAID = {"keys": "keys", "shares": "shares", "vectors": "vector", "signatures": "signature", "opened": "opened"}
"""The state's fields of what devices have said, and their columns."""
STAGES: dict[SumPart, ServerStage] = {
    "keys": ServerStage.KEYS,
    "shares": ServerStage.SHARES,
    "vector": ServerStage.VECTORS,
    "list": ServerStage.LISTS,
    "opened": ServerStage.OPENING,
}
"""When each part of a device is taken."""


class Summed(NamedTuple):
    """A sum that is opened: its whole numbers as bytes, of how many bits each, and whose they are."""

    total: bytes
    bits: int
    devices: tuple[str, ...]

    def to_json(self) -> list[Any]:
        """Return what `from_json` needs, in another process."""
        return [base64.b64encode(self.total).decode(), *self[1:]]

    @classmethod
    def from_json(cls, made: Sequence[Any]) -> Summed:
        """Read what another process has made."""
        total, bits, devices = made
        return cls(base64.b64decode(total), bits, tuple(devices))


def bounded(rounds: RoundSettings, settings: SecureSettings) -> RoundSettings:
    """Return the settings by which a cohort is drawn: a sum has no more members than its list may hold."""
    if not settings.is_on or rounds.clients_per_round is not None:
        return rounds
    return rounds.model_copy(update={"clients_per_round": MAX_LIVE_MEMBERS, "over_selection": 1.0})


def begin(
    session: Session,
    federation: FederationRow,
    settings: SecureSettings,
    cohort: Sequence[DeviceRow],
    retry: Retry,
) -> None:
    """Write what a new round asks its cohort to add up, and by which keys its devices are known.

    retry: what the round is of.
    """
    row = repositories.open_round(session, federation)
    if row is None or federation.sum_layout is None:
        return
    where: dict[str, object] = {
        "federation": federation.name,
        "instance": federation.instance,
        "epoch": epochs.current(session).epoch,
        "round": row.number,
    }
    layout = layout_from_json(federation.sum_layout)
    request = request_for(settings, layout, len(cohort), where)
    nothing = {"members": b"", "dealers": [], "included": b"", "total": b"", "reason": ""}
    session.add(
        SecureSumRow(
            round_id=row.id,
            stage=str(ServerStage.KEYS),
            request=written(request),
            **nothing,
            listed_devices=0,
            summed_devices=0,
            deadline_at=None,
            retry="" if retry == Retry() else written(retry).decode(),
        )
    )
    for device in cohort:
        identity = base64.b64decode(device.public_key or "")
        session.add(
            SecureSumDeviceRow(round_id=row.id, device_id=device.id, identity=identity, uploaded={}, **_silent())
        )
    session.flush()


def _silent() -> dict[str, bytes]:
    return dict.fromkeys(SAID.values(), b"")


def load(session: Session, row: RoundRow) -> ServerState | None:
    """Return where the sum of a round stands; None where its updates are not added by one."""
    found = session.get(SecureSumRow, row.id)
    if found is None:
        return None
    return _state(found, _devices(session, row.id))


def _state(found: SecureSumRow, devices: Mapping[str, SecureSumDeviceRow]) -> ServerState:
    """Return where a sum stands, as far as these devices go."""
    sent = {
        field: {name: getattr(device, column) for name, device in devices.items() if getattr(device, column)}
        for field, column in SAID.items()
    }
    return ServerState(
        stage=ServerStage(found.stage),
        request=found.request,
        identities={name: device.identity for name, device in devices.items()},
        members=found.members,
        dealers=tuple(found.dealers),
        total=found.total,
        included=found.included,
        reason=found.reason,
        needs_all=bool(retry_of(found).groups),
        finding=finding_of(found),
        **sent,
    )


def retry_of(found: SecureSumRow) -> Retry:
    """Return what a sum is of or, once its round has ended, what the next ones are."""
    return Retry.model_validate_json(found.retry) if found.retry else Retry()


def finding_of(found: SecureSumRow) -> SumFinding:
    """Return what is known of a sum that has failed."""
    return SumFinding.model_validate_json(found.finding) if found.finding else SumFinding()


def save(
    session: Session,
    row: RoundRow,
    old: ServerState,
    new: ServerState,
    deadline_at: float | None,
    shared: Blob | None = None,
) -> None:
    """Write what the end of a stage has changed; `deadline_at` is that of the next one.

    shared: the blob of what all members are told alike in it, where it is long.
    """
    found = session.get_one(SecureSumRow, row.id)
    found.shared_sha256, found.shared_size = shared or (None, None)
    if new.stage is not old.stage:
        found.deadline_at = deadline_at if new.stage in STAGES.values() else None
    found.listed_devices = len(new.keys) or found.listed_devices
    found.summed_devices = len(new.vectors)
    _write(found, _devices(session, row.id), old, new)
    session.flush()


def _write(found: SecureSumRow, devices: Mapping[str, SecureSumDeviceRow], old: ServerState, new: ServerState) -> None:
    """Write a state to the rows that it was read from."""
    found.stage, found.members, found.dealers = str(new.stage), new.members, list(new.dealers)
    found.included, found.total, found.reason = new.included, new.total, new.reason
    found.finding = "" if new.finding == SumFinding() else written(new.finding).decode()
    for name, device in devices.items():
        for field, column in SAID.items():
            value = getattr(new, field).get(name, b"")
            if value != getattr(old, field).get(name, b""):
                setattr(device, column, value)


def _devices(session: Session, round_id: int, names: Collection[str] | None = None) -> dict[str, SecureSumDeviceRow]:
    query = select(SecureSumDeviceRow).where(SecureSumDeviceRow.round_id == round_id)
    if names is not None:
        query = query.where(SecureSumDeviceRow.device.has(DeviceRow.name.in_(names)))
    return {device.device.name: device for device in session.scalars(query)}


def require_expected(session: Session, federation_id: int, device_id: int, manifest: UpdateManifest) -> RoundRow:
    """Return the round whose sum takes this message now; asked before its bytes are taken, and again after.

    Raises:
        UpdateRefusedError: saying where the sum stands.
    """
    query = select(RoundRow).where(RoundRow.federation_id == federation_id, RoundRow.phase.not_in(repositories.ENDED))
    row, part = session.scalar(query), manifest.sum
    found = session.get(SecureSumRow, row.id) if row is not None and row.number == manifest.round else None
    if row is None or found is None or part is None:
        raise UpdateRefusedError(f"round {manifest.round} is over, or adds up nothing")
    own = session.get(SecureSumDeviceRow, (row.id, device_id))
    if own is None:
        raise UpdateRefusedError(f"{manifest.client} is not in the secure sum of round {manifest.round}")
    if part in own.uploaded:
        raise UpdateRefusedError(f"{manifest.client} has sent its {part} for round {manifest.round} already")
    if found.stage != STAGES[part]:
        raise UpdateRefusedError(
            f"{manifest.client} is too late or too early with its {part}: the secure sum is at {found.stage}"
        )
    if manifest.size > (limit := limit_of(part, read(SumRequest, found.request))):
        reason = f"{manifest.size:,} bytes were announced, a {part} here has at most {limit:,}"
        raise UpdateRefusedError(reason, quarantine=True)
    return row


def has_said(session: Session, federation_id: int, device_id: int, manifest: UpdateManifest) -> bool:
    """Whether this very message of a device was taken in the open round before."""
    of_device = (SecureSumDeviceRow.device_id == device_id, RoundRow.federation_id == federation_id)
    query = select(SecureSumDeviceRow.uploaded).join(RoundRow, RoundRow.id == SecureSumDeviceRow.round_id)
    uploaded = session.scalar(query.where(*of_device, RoundRow.number == manifest.round))
    return uploaded is not None and uploaded.get(str(manifest.sum)) == manifest.sha256


def take(session: Session, row: RoundRow, device: DeviceInfo, manifest: UpdateManifest, data: bytes) -> bool:
    """Take a device's message, of whose rows its own alone is read; return whether its stage has everybody's.

    Raises:
        UpdateRefusedError: if it is wrong, late, or another one than the device has sent before.
        WireError: if it cannot be read.
    """
    found, part = session.get(SecureSumRow, row.id), manifest.sum
    if found is None or part is None:
        raise UpdateRefusedError(f"round {row.number} adds up nothing")
    own = session.get_one(SecureSumDeviceRow, (row.id, device.id))
    state, message = _state(found, {device.name: own}), unpacked(part, data)
    if part == "keys":
        federation = session.get_one(FederationRow, row.federation_id)
        vouching.require_voucher(federation, device.name, own.identity, message.payload)
        if not retry_of(found).groups and contributions.is_seen(session, device.id, manifest.sequence):
            raise UpdateRefusedError(f"these sums of {device.name} are in an impossible sum, and aren't added again")
    result = server.step(state, FromDevice(device.name, message.kind, message.payload, message.vector))
    if result.refusal:
        raise UpdateRefusedError(result.refusal, quarantine=result.is_fault)
    _write(found, {device.name: own}, state, result.state)
    own.uploaded = {**own.uploaded, part: manifest.sha256}
    if manifest.sequence is not None:
        own.sequence = manifest.sequence
    session.flush()
    return not _is_awaiting(session, row.id, result.state.stage)


AWAITED = {
    ServerStage.KEYS: ("identity", "keys"),
    ServerStage.SHARES: ("keys", "shares"),
    ServerStage.VECTORS: ("shares", "vector"),
    ServerStage.LISTS: ("vector", "signature"),
    ServerStage.OPENING: ("vector", "opened"),
}
"""By stage: who has said the first, and not the second, is waited for, as `federation.secure_sums.server.missing`."""


def _is_awaiting(session: Session, round_id: int, stage: ServerStage, device: str | None = None) -> bool:
    """Whether any device, or that one, has not answered in a stage."""
    if stage not in AWAITED:
        return False
    has, lacks = (getattr(SecureSumDeviceRow, name) for name in AWAITED[stage])
    # a length is read off a row's head: comparing bytes would read what lies before them, all shares of each row
    query = select(SecureSumDeviceRow.device_id).where(
        SecureSumDeviceRow.round_id == round_id, func.length(has) > 0, func.length(lacks) == 0
    )
    if device is not None:
        query = query.join(DeviceRow, DeviceRow.id == SecureSumDeviceRow.device_id).where(DeviceRow.name == device)
    return session.scalar(query.limit(1)) is not None


def orders(session: Session, row: RoundRow, device: str | None = None) -> dict[str, SumOrder]:
    """Return what each device that is still waited for, or that one, was told last, from the rows alone."""
    found = session.get(SecureSumRow, row.id)
    if found is None or (device is not None and not _is_awaiting(session, row.id, ServerStage(found.stage), device)):
        return {}
    if device is None:
        state = _state(found, _devices(session, row.id))
        awaited = set(server.missing(state))
        messages = [message for message in server.repeated(state) if message.device in awaited]
    else:
        messages = _said_to(session, found, device)
    return {
        message.device: SumOrder(
            kind=message.kind.value, body=message.body.decode(), shared=_pointer(found) if message.shared else None
        )
        for message in messages
    }


def _said_to(session: Session, found: SecureSumRow, device: str) -> list[ToDevice]:
    """Return what one device was told last, for which the rows of its neighbours are read and no others."""
    is_apart = found.shared_sha256 is not None
    if found.stage == ServerStage.OPENING and not is_apart:
        rows = _devices(session, found.round_id)  # the signatures of many
    else:
        names = {device}
        if found.stage in (ServerStage.VECTORS, ServerStage.OPENING):
            listed = membership(found.request, found.members)
            places = listed.neighbours(listed.places[device]) if device in listed.places else ()
            names |= {listed.members[place].device for place in places}
        rows = _devices(session, found.round_id, names)
    message = server.repeated_to(_state(found, rows), device, is_apart=is_apart)
    return [] if message is None else [message]


def _pointer(found: SecureSumRow) -> BlobPointer | None:
    sha256, size = found.shared_sha256, found.shared_size
    return None if sha256 is None or size is None else BlobPointer(sha256=sha256, size=size, url=f"/v1/blobs/{sha256}")


def overdue(session: Session, now: float) -> list[str]:
    """Return the federations in whose open round a stage of the sum has had its time."""
    query = (
        select(FederationRow.name)
        .join(RoundRow, RoundRow.federation_id == FederationRow.id)
        .join(SecureSumRow, SecureSumRow.round_id == RoundRow.id)
        .where(RoundRow.phase == RoundPhase.AGGREGATING, SecureSumRow.deadline_at <= now)
    )
    return list(session.scalars(query))


def summed(session: Session, row: RoundRow) -> Summed | None:
    """Return the sum of a round, if it is opened."""
    state = load(session, row)
    if state is None or state.stage is not ServerStage.DONE:
        return None
    request, devices = read(SumRequest, state.request), server.included_devices(state)
    return Summed(state.total, request.bits, devices)


def summed_devices(session: Session, row: RoundRow) -> tuple[str, ...] | None:
    """Return whose vectors are in the sum of a round that is about to be published; None where it has no sum."""
    state = load(session, row)
    return server.included_devices(state) if state is not None else None
