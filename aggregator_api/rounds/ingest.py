"""Handles devices' messages: statuses and uploads, from the topic to the durable update and its acknowledgement.

Nothing here raises for what a device sent: it is refused with a reason, or it is ignored and logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from aggregator_api.core.errors import BlobError, UpdateRefusedError
from aggregator_api.core.settings import Settings
from aggregator_api.devices import contributions, suspension
from aggregator_api.devices.presence import CloneDetector
from aggregator_api.rollouts import scores, transitions
from aggregator_api.rounds import model_refusals, opening, secure_rounds
from aggregator_api.rounds.announcements import Announcer
from aggregator_api.rounds.coordinator import Coordinator
from aggregator_api.rounds.updates import admission, receipts
from aggregator_api.rounds.updates.context import ACCEPTED_STATUSES, UpdateContext
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.rounds.updates.partial_uploads import Key, PartialUpload, PartialUploads
from aggregator_api.rounds.updates.screening import AnomalyDetector, Norms
from aggregator_api.storage import outages
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import Broadcasts
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationRow
from federation import wire
from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.messages import MESSAGE_BYTES, Acknowledgement, DeviceStatus, Notice, UpdateManifest, read
from federation.protocol.signing import Envelope, unwrap
from federation.protocol.topics import DeviceTopic
from federation.rounds.gains import fitting
from federation.rounds.server_round import Action, UpdateArrived
from gaitway.logs import about

log = logging.getLogger(__name__)

HOUR_S = 3600.0
RETAINED = "it had the broker retain a message, which was removed; Gaitway's agent never does"
CLONED = (
    "another machine uses this device's name and password, and was connected first; stop one of the two, "
    "and give each machine an enrolment of its own"
)
FORGERY_LOG_INTERVAL_S = 60.0


class Ingest:
    """Handles what devices publish; only the inbox's thread calls it."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        uploads: PartialUploads,
        coordinator: Coordinator,
        announcer: Announcer,
        settings: Settings,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._uploads = uploads
        self._coordinator = coordinator
        self._announcer = announcer
        self._settings = settings
        self._broadcasts = Broadcasts(blobs)
        self._clones = CloneDetector()
        self._retained: dict[tuple[str, str], float] = {}
        self._anomalies = AnomalyDetector(database, self._broadcasts)
        self._forged_at: dict[tuple[str, str], float] = {}

    def handle(self, topic: str, payload: bytes) -> None:
        """Take one message from a device."""
        try:
            address = topics.parse(topic)
        except WireError as error:
            log.warning("message ignored: %s", error)
            return
        if address.kind == "status":
            self._status(address, payload)
            return
        if not payload and address.kind in ("begin", "chunk"):
            return  # the driver removes what a device had the broker retain
        key = (address.federation, address.device, address.update_id)
        try:
            match address.kind:
                case "begin":
                    self._begin(key, payload)
                case "chunk":
                    self._chunk(key, address.chunk, payload)
                case "end":
                    self._end(key)
        except UpdateRefusedError as refusal:
            upload = self._uploads.get(key)
            self._refuse(key, refusal, upload.manifest if upload else None)
        except BlobError as error:
            self._coordinator.base_damaged(key[0], str(error))
            nonce = self._nonce(key, payload)
            self._answer(key, "retry", nonce=nonce, reason="the server's copy of the round's model is damaged")
        except (OSError, DBAPIError) as error:
            if not outages.is_full(error):
                raise
            log.error("disk full: %s", error, extra=_about(key))
            nonce = self._nonce(key, payload)
            self._answer(key, "retry", nonce=nonce, reason="the server's disk is full; try later")

    def take_over(self, federation: str) -> None:
        """Resume the uploads that another process has left behind, without waiting for their devices' time-outs."""
        for key, upload in self._uploads.read_again(federation).items():
            self._answer(key, "send", nonce=upload.manifest.nonce, next_chunk=upload.next_chunk)

    def note_retained(self, topic: str) -> None:
        """Note who had the broker retain a message, once an hour; the driver has removed it."""
        try:
            address = topics.parse(topic)
        except WireError:
            return
        now, whose = time.monotonic(), (address.federation, address.device)
        if now - self._retained.get(whose, -HOUR_S) < HOUR_S:
            return
        with self._database.write() as session:
            federation = repositories.find_federation(session, address.federation)
            if federation is not None and repositories.find_device(session, federation, address.device) is not None:
                self._retained[whose] = now
                repositories.journal(session, federation, "device.retained", device=address.device, detail=RETAINED)

    def _status(self, address: DeviceTopic, payload: bytes) -> None:
        if not payload:
            return  # someone cleared the retained status
        try:
            status = read(DeviceStatus, payload)
        except WireError as error:
            log.warning("status ignored: %s", error, extra=_about(address[:2]))
            return
        with self._database.write() as session:
            federation = repositories.find_federation(session, address.federation)
            if federation is None:
                log.warning("status ignored: no such federation", extra=_about(address[:2]))
                return
            row = repositories.find_device(session, federation, address.device)
            if reason := admission.rejection_reason(row, *address[:2], enrolled_only=self._settings.enrolled_only):
                log.warning("status refused: %s", reason, extra=_about(address[:2]))
                return
            changed = receipts.note_status(session, federation, row, address.device, status)
            # writers come one after the other: who completes the number sees all the others, and an open round looks
            # for its successor's devices itself
            contract = self._coordinator.contract(federation)
            changed |= self._note_changes(session, federation, contract, address.device, status)
            waits = changed and not contract.kind.keeps_sums
            missed = waits and opening.due(session, federation, contract.plan, time.time())
            report = status.release
            if status.adoption:
                scores.record_adoption(session, federation, address.device, status.adoption)
            verdict = self._clones.observe(*address[:2], status.session, status.number, time.monotonic())
            if verdict.cloned:
                receipts.note_clone(session, federation, address.device)
            refuses = model_refusals.note_refusal(session, federation, row, status.unusable)
            devices = report and transitions.record_answer(session, federation, address.device, report, time.time())
        if verdict.stop:
            notice = Notice(session=status.session, reason=CLONED)
            self._announcer.notify_device(*address[:2], notice)
        if devices:
            self._coordinator.announce(address.federation)
        if refuses:
            self._coordinator.withdraw_refused(address.federation)
        if missed:
            self._coordinator.devices_changed(address.federation)

    def _note_changes(
        self, session: Session, federation: FederationRow, contract: Contract, device: str, status: DeviceStatus
    ) -> bool:
        """Note which sums a device would add to a masked round; return whether that is news."""
        if not (contract.kind.sums and contract.kind.masked):
            return False
        row = repositories.find_device(session, federation, device)
        if row is None or status.state == "offline":  # a last will knows nothing of sums
            return False
        return contributions.note_status(session, federation, row, status.sums)

    def _begin(self, key: Key, payload: bytes) -> None:
        envelope, manifest, fault = _opened(payload)
        # what it says is used for the one look alone, until it is known to be the device's word
        context = self._load_context(key, manifest)
        if reason := admission.forged(context, key, envelope):
            self._note_forged(key, reason)
            # not refused: the device's own update may have this id, and must neither be dropped nor be settled here
            self._answer(key, "retry", nonce=manifest.nonce if manifest else "", reason=reason)
            return
        if self._answered_before(key, context, manifest):
            return
        if manifest is None:
            self._refuse(key, UpdateRefusedError(fault, quarantine=True), None, nonce=_nonce_of(payload))
            return
        try:
            admission.admit(context, manifest, key, self._contract(key, context))
            self._require_expected(context, manifest)
            if manifest.withdraw:
                self._accept(key, manifest, None, {})
                return
            upload = self._uploads.get(key)
            if upload is None or not upload.continues(manifest):
                if reason := outages.shortage(self._uploads.root, self._settings.min_free_bytes + manifest.size):
                    log.warning("update postponed: %s", reason, extra=_about(key))
                    self._answer(key, "retry", nonce=manifest.nonce, reason=reason)
                    return
                self._make_room(key)
                upload = self._uploads.begin(key, manifest)
        except UpdateRefusedError as refusal:
            self._refuse(key, refusal, manifest)
        else:
            self._answer(key, "send", nonce=manifest.nonce, next_chunk=upload.next_chunk)

    def _chunk(self, key: Key, n: int, payload: bytes) -> None:
        upload = self._uploads.get(key)
        if upload is None:
            log.debug("chunk ignored: not begun, or done", extra=_about(key))
            return
        try:
            upload.write_chunk(n, payload)
        except WireError as error:
            raise UpdateRefusedError(str(error), quarantine=True) from error

    def _end(self, key: Key) -> None:
        """Check the file's bytes, make them durable, commit, and only then acknowledge."""
        upload = self._uploads.get(key)
        if upload is None or not upload.path.exists():
            self._answered_before(key, self._load_context(key), None)  # else silence: the device begins again
            return
        if (data := self._complete(key, upload)) is None:
            return
        manifest, context = upload.manifest, self._load_context(key, upload.manifest)
        contract = self._contract(key, context)
        admission.admit(context, manifest, key, contract)
        self._require_expected(context, manifest)
        if manifest.sum is not None:
            self._take_part(key, upload, data)
            return
        tree = contract.decode(manifest, data, self._broadcasts.read)
        norms = self._anomalies.check(contract, context, manifest, tree)
        if contract.kind.keeps_sums and manifest.compression != "none":
            blob = self._blobs.put(wire.encode(tree))  # it stays for long, and is read without its manifest
        else:
            self._blobs.adopt(upload.path, manifest.sha256)
            blob = Blob(manifest.sha256, manifest.size)
        self._accept(key, manifest, blob, norms)

    def _complete(self, key: Key, upload: PartialUpload) -> bytes | None:
        """Return an upload's bytes; None, and the device knows where to go on, while some are missing."""
        if not upload.assembly.complete:
            self._answer(key, "send", nonce=upload.manifest.nonce, next_chunk=upload.next_chunk)
            return None
        if hashlib.sha256(data := upload.read()).hexdigest() == upload.manifest.sha256:
            return data
        if not upload.resumed:
            raise UpdateRefusedError(f"the bytes do not have the sha256 {upload.manifest.sha256}", quarantine=True)
        # a power cut may have cost written chunks: the update itself is not to blame
        self._uploads.begin(key, upload.manifest)
        self._answer(key, "send", nonce=upload.manifest.nonce, next_chunk=0)
        return None

    def _take_part(self, key: Key, upload: PartialUpload, data: bytes) -> None:
        """Take a message of a secure sum: rows, then the acknowledgement, then what follows if its stage has ended.

        A device's keys are its update, as far as the round's machine and the listings go.
        """
        manifest, actions = upload.manifest, tuple[Action, ...]()
        if manifest.sum == "keys":
            self._blobs.adopt(upload.path, manifest.sha256)
        with self._coordinator.lock:
            with self._database.write() as session:
                context = UpdateContext.load(session, *key, manifest.round)
                federation, device = admission.sender(context, *key[:2], enrolled_only=self._settings.enrolled_only)
                admission.admit(context, manifest, key, self._coordinator.contract_of(session, federation))
                has_ended = self._coordinator.sums.take(session, federation, device, manifest, data)
                if manifest.sum == "keys":
                    round_id, actions = self._into_round(session, context, manifest)
                    receipts.forget_quarantined(session, device, manifest.update_id)
                    place = receipts.Destination("accepted", manifest.round, round_id, "keys for the secure sum")
                    receipts.note_update(session, federation, device, manifest, place, {})
            self._uploads.discard(key)
            self._answer(key, "accepted", nonce=manifest.nonce)
            if has_ended:
                self._coordinator.sums.act(key[0])
            self._coordinator.execute(key[0], actions)

    def _accept(self, key: Key, manifest: UpdateManifest, blob: Blob | None, norms: Norms) -> None:
        """Commit an update whose blob is durable, acknowledge it, and do what follows; without one, it withdraws."""
        with self._coordinator.lock:
            with self._database.write() as session:
                context = UpdateContext.load(session, *key, manifest.round)
                federation, device = admission.sender(context, *key[:2], enrolled_only=self._settings.enrolled_only)
                contract = self._coordinator.contract_of(session, federation)
                admission.admit(context, manifest, key, contract)
                manifest, actions = _with_fitting_gains(manifest, contract, key), tuple[Action, ...]()
                if context.known is not None:
                    receipts.forget_quarantined(session, device, manifest.update_id)
                if contract.kind.keeps_sums:
                    contributions.replace(session, federation, device, manifest, blob)
                    place = receipts.Destination("accepted", federation.last_round + 1)
                else:
                    round_id, actions = self._into_round(session, context, manifest)
                    kept = "" if round_id else "kept for the next round"
                    left_out = receipts.last_exclusion(session, device) if device.refused_updates else ""
                    reason = "; ".join(filter(None, (contract.partial_work(manifest), kept, left_out)))
                    status = "accepted" if round_id else "deferred"
                    place = receipts.Destination(status, manifest.round, round_id, reason)
                receipts.note_update(session, federation, device, manifest, place, norms)
            self._uploads.discard(key)
            self._answer(key, "accepted", nonce=manifest.nonce, reason=place.reason)
            if contract.kind.keeps_sums:  # the next version may be due by it
                self._coordinator.devices_changed(key[0])
            self._coordinator.execute(key[0], actions)

    def _into_round(
        self, session: Session, context: UpdateContext, manifest: UpdateManifest
    ) -> tuple[int | None, tuple[Action, ...]]:
        """Hand an admitted update to the open round; None if it waits for the next one."""
        federation, device = admission.sender(context, manifest.federation, manifest.client)
        rounds = self._coordinator.contract_of(session, federation).plan.rounds
        if context.open is None or admission.must_wait(context, rounds):
            return None, ()
        event = UpdateArrived(device.name, manifest.round)
        result = self._coordinator.apply_arrival(session, federation, device, context.open, event)
        return context.open.id, result.actions

    def _load_context(self, key: Key, manifest: UpdateManifest | None = None) -> UpdateContext:
        with self._database.read() as session:
            return UpdateContext.load(session, *key, manifest.round if manifest else 0)

    def _contract(self, key: Key, context: UpdateContext) -> Contract:
        """Return what the federation of an update accepts, if its device may send one."""
        federation, _ = admission.sender(context, *key[:2], enrolled_only=self._settings.enrolled_only)
        with self._database.read() as session:
            return self._coordinator.contract_of(session, federation)

    def _require_expected(self, context: UpdateContext, manifest: UpdateManifest) -> None:
        """Refuse a message of a secure sum that its stage does not wait for."""
        if manifest.sum is not None:
            federation, device = admission.sender(context, manifest.federation, manifest.client)
            with self._database.read() as session:
                secure_rounds.require_expected(session, federation.id, device.id, manifest)

    def _make_room(self, key: Key) -> None:
        """Drop the device's uploads that no round takes any more; refuse one too many."""
        for other in self._uploads.of_device(*key[:2]):
            upload = self._uploads.get(other)
            try:
                if upload is not None and other != key:
                    context = self._load_context(other, upload.manifest)
                    admission.admit(context, upload.manifest, other, self._contract(other, context))
                    self._require_expected(context, upload.manifest)
            except UpdateRefusedError:
                self._uploads.discard(other)
        begun = [other for other in self._uploads.of_device(*key[:2]) if other != key]
        if len(begun) >= self._settings.uploads_per_device:
            raise UpdateRefusedError(f"{len(begun)} uploads of this device are under way; finish them first")

    def _answered_before(self, key: Key, context: UpdateContext, manifest: UpdateManifest | None) -> bool:
        """Repeat the answer about an update that is settled."""
        if manifest is not None and manifest.sequence is not None and admission.repeats(context, manifest):
            self._answer(key, "accepted", nonce=manifest.nonce)
            return True
        if manifest is not None and manifest.sum is not None and self._has_said(context, manifest):
            self._answer(key, "accepted", nonce=manifest.nonce)
            return True
        if context.known is None:
            return False
        if manifest is not None and self._is_corrected(context, manifest):
            return False
        known, is_accepted = context.known, context.known.status in ACCEPTED_STATUSES
        reason = known.reason
        if manifest is not None and is_accepted and (differs := admission.differs(known, manifest)):
            is_accepted, reason = False, differs
        nonce = manifest.nonce if manifest else known.nonce
        self._answer(key, "accepted" if is_accepted else "refused", nonce=nonce, reason=reason)
        return True

    def _is_corrected(self, context: UpdateContext, manifest: UpdateManifest) -> bool:
        """Whether a quarantined update comes again with another manifest: it is judged anew."""
        if context.device is None or context.known is None or context.known.status != receipts.QUARANTINED:
            return False
        with self._database.read() as session:
            return receipts.quarantined_manifest(session, context.device, manifest.update_id) != manifest

    def _has_said(self, context: UpdateContext, manifest: UpdateManifest) -> bool:
        """Whether the secure sum of its round has this message already."""
        if context.federation is None or context.device is None:
            return False
        with self._database.read() as session:
            return secure_rounds.has_said(session, context.federation.id, context.device.id, manifest)

    def _note_forged(self, key: Key, reason: str) -> None:
        """Count what was forged in the journal, of each device once a minute: whoever forges must not fill the disk."""
        log.warning("update forged: %s", reason, extra=_about(key))
        now = time.monotonic()
        if now - self._forged_at.get(key[:2], -FORGERY_LOG_INTERVAL_S) < FORGERY_LOG_INTERVAL_S:
            return
        self._forged_at[key[:2]] = now
        with self._database.write() as session:
            if federation := repositories.find_federation(session, key[0]):
                detail = f"{key[2]}: {reason}"
                repositories.journal(session, federation, "update.quarantined", device=key[1], detail=detail)

    def _refuse(
        self, key: Key, refusal: UpdateRefusedError, manifest: UpdateManifest | None, *, nonce: str = ""
    ) -> None:
        with self._database.write() as session:
            federation = repositories.find_federation(session, key[0])
            device = repositories.find_device(session, federation, key[1]) if federation else None
            if federation and device:
                receipts.note_refusal(session, federation, device, key[2], refusal, manifest)
                if refusal.is_fault:
                    number = manifest.round if manifest else 0
                    rounds = self._coordinator.contract(federation).plan.rounds
                    suspension.count_refused(session, federation, device, rounds, number, refusal.reason)
            else:
                log.warning("update refused: %s", refusal.reason, extra=_about(key))
        self._uploads.discard(key)
        self._answer(key, "refused", nonce=manifest.nonce if manifest else nonce, reason=refusal.reason)
        if federation and manifest and manifest.client == key[1]:
            self._coordinator.stop_awaiting(*key[:2], manifest.round)

    def _nonce(self, key: Key, payload: bytes) -> str:
        """Return the nonce of an update that is under way, or is about to be."""
        upload = self._uploads.get(key)
        return upload.manifest.nonce if upload else _nonce_of(payload)

    def _answer(self, key: Key, status: str, *, nonce: str, next_chunk: int = 0, reason: str = "") -> None:
        answer = {"status": status, "next_chunk": next_chunk, "reason": reason[:1000]}
        message = Acknowledgement.model_validate({"update_id": key[2], "nonce": nonce, **answer})
        self._announcer.acknowledge(*key[:2], message)


def _opened(payload: bytes) -> tuple[Envelope, UpdateManifest | None, str]:
    """Return a manifest as it came, what it says, and why nothing can be read in it."""
    envelope = Envelope(payload, None)
    try:
        envelope = unwrap(payload)
        return envelope, read(UpdateManifest, envelope.body), ""
    except WireError as error:
        return envelope, None, str(error)


def _with_fitting_gains(manifest: UpdateManifest, contract: Contract, key: Key) -> UpdateManifest:
    """Drop gains that the federation has no use for: the update itself is as good without them."""
    fit = {} if contract.kind.sums else fitting(manifest.gains, len(contract.plan.labels))
    if unfit := sorted(manifest.gains.keys() - fit.keys()):
        log.warning("gains dropped candidates=%s", ",".join(unfit), extra=_about(key))
    return manifest.model_copy(update={"gains": fit})


def _nonce_of(payload: bytes) -> str:
    """Return the nonce of a manifest that cannot be taken, so that its device knows the answer for its own."""
    try:
        message = json.loads(unwrap(payload[:MESSAGE_BYTES]).body)
    except (WireError, ValueError, RecursionError):
        return ""
    nonce = message.get("nonce") if isinstance(message, dict) else None
    return nonce[:64] if isinstance(nonce, str) and nonce.isprintable() else ""


def _about(address: Sequence[str]) -> dict[str, str | int]:
    """Return a log record's fields: federation, device and, if there is one, update."""
    federation, device, *update = address
    return about(federation=federation, device=device, update=update[0] if update else "")
