"""The device's part in a round's secure sum, on disk: its numbers, its state, and its messages.

The state machine is `federation.secure_sums.client`. Its state and the message that follows from it are written in one
transaction, and a message leaves from the outbox like any update; so a device that was killed goes on, or has said
nothing. A device begins one sum a round: other numbers under a second set of masks never leave it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.storage.credentials import device_key, has_key, own_voucher, voucher_check
from edge_agent.storage.data_folder import OUTBOX, SUMS, move_file, write_file
from edge_agent.storage.state_store import StateStore
from federation.errors import WireError
from federation.plan import Plan, SecureSettings
from federation.privacy import discrete_gaussian
from federation.protocol.messages import Invitation, SumPart, UpdateManifest
from federation.secure_sums import client
from federation.secure_sums.client import ClientState
from federation.secure_sums.messages import (
    FromServer,
    ServerMessage,
    SumDevice,
    SumRequest,
    ToServer,
    VectorReady,
    read,
)
from federation.secure_sums.uploads import PARTS, packed

SUM = "sum"
"""Name in the store of the sum that the device takes part in, or took part in last."""
_PART_OF = {kind: part for part, kind in PARTS.items()}


class SumAnswer(NamedTuple):
    """What came of what the server said: the message that waits in the outbox, or why there is none."""

    update_id: str = ""
    reason: str = ""


class BegunSum(NamedTuple):
    """The message with the keys, which is on disk, and the pairs to be kept with it in one transaction."""

    manifest: UpdateManifest
    path: Path
    pairs: dict[str, str]


def begin(
    store: StateStore,
    plan: Plan,
    request_text: str,
    described: UpdateManifest,
    numbers: Path,
    meaning: Any,
) -> BegunSum:
    """Begin a round's sum with the numbers that training has left in a file, which is moved to where it lasts.

    `request_text` is the server's request, `described` the manifest of the update as such, and `meaning` says what the
    numbers mean.

    Raises:
        ValueError: if the request is none, is for another round or federation, asks for less than the plan, or the
            device has begun the sum of this round before, or has no key.
    """
    current = (store.get("federation"), described.instance, store.epoch, described.round)
    try:
        request = read(SumRequest, request_text.encode())
        if (request.federation, request.instance, request.epoch, request.round) != current:
            raise WireError("the request is for the sum of another federation or round")
        if request.layout.hex() != meaning["layout"]:
            raise WireError("the server asks for a sum of other numbers than the plan has")
        if (before := _kept(store)) and before["where"] == list(current):
            raise WireError(f"this device has begun the sum of round {described.round} before; it does so once")
        begun = client.begin(_device(store, plan.secure), request_text.encode())
    except WireError as error:
        raise ValueError(f"the secure sum of round {described.round} cannot begin: {error}") from error
    if begun.message is None:
        raise ValueError(begun.reason)
    where = f"{SUMS}/r{described.round}-{request.attempt.hex()[:16]}.numbers"
    move_file(numbers, store.folder / where)
    if plan.secure.noise_multiplier:
        _add_noise(store.folder / where, plan.secure)
    manifest = _manifest(described, begun.message)
    write_file(path := store.folder / OUTBOX / manifest.update_id, packed(begun.message))
    noted = {
        "where": list(current),
        "bound": meaning["bound"],
        "layout": meaning["layout"],
        "numbers": where,
        "described": described.model_dump(mode="json"),
        "secure": plan.secure.model_dump(mode="json"),
        "state": begun.state.model_dump_json(),
    }
    return BegunSum(manifest, path, {SUM: json.dumps(noted)})


def _add_noise(path: Path, settings: SecureSettings) -> None:
    """Clip the numbers in a file, and add the device's share of this sum's noise.

    It is drawn once: the same numbers with other noise would show more of them. The last number, that the device is
    there, stays as it is.
    """
    vector = np.frombuffer(path.read_bytes(), "<i8").astype(np.int64)
    devices, norm = discrete_gaussian.noisy_devices(settings), settings.clip_norm or 0.0
    share = discrete_gaussian.share_of(settings.noise_multiplier, norm, devices)
    noise = discrete_gaussian.noise(len(vector) - 1, share, secrets.token_bytes)
    vector[:-1] = discrete_gaussian.clipped(vector[:-1], norm) + noise
    write_file(path, vector.astype("<i8").tobytes())


def answer(store: StateStore, invitation: Invitation, shared: bytes = b"") -> SumAnswer:
    """Take what the server says in the sum of a round; the state and the message are durable when this returns.

    `shared` is the part of it that `said` points to.
    """
    kept = _kept(store)
    where = [store.get("federation"), invitation.instance, invitation.epoch, invitation.round]
    if invitation.sum is None or invitation.sum.kind == "request" or not kept or kept["where"] != where:
        return SumAnswer()  # a request is answered by the training of its round
    try:
        device = _device(store, SecureSettings.model_validate(kept["secure"]))
        state = ClientState.model_validate_json(kept["state"])
        if invitation.sum.shared is not None and hashlib.sha256(shared).hexdigest() != invitation.sum.shared.sha256:
            raise WireError("what all members are told is damaged on this device")
        heard = FromServer(ServerMessage(invitation.sum.kind), invitation.sum.body.encode(), shared)
        result = client.step(device, state, heard)
        if invitation.sum.kind == "shares" and not result.reason:
            result = client.step(device, result.state, _numbers(store, kept))
    except (WireError, FileNotFoundError) as error:
        return SumAnswer(reason=str(error))
    pairs = {SUM: json.dumps({**kept, "state": result.state.model_dump_json()})}
    if result.message is None:
        store.put(**pairs)
        return SumAnswer(reason=result.reason)
    manifest = _manifest(UpdateManifest.model_validate(kept["described"]), result.message)
    if manifest.update_id in store.outbox():
        return SumAnswer(manifest.update_id)  # it is the same, bit for bit, and on its way
    path = store.folder / OUTBOX / manifest.update_id
    write_file(path, packed(result.message))
    store.add_message(manifest, path, **pairs)
    return SumAnswer(manifest.update_id)


def files_of(store: StateStore) -> set[str]:
    """Return the name of the file with the present sum's numbers."""
    return {Path(_kept(store).get("numbers", "")).name} - {""}


def _kept(store: StateStore) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(store.get(SUM) or "{}")
    return noted


def _numbers(store: StateStore, kept: dict[str, Any]) -> VectorReady:
    vector = np.frombuffer((store.folder / kept["numbers"]).read_bytes(), "<i8").astype(np.int64)
    return VectorReady(vector, kept["bound"], bytes.fromhex(kept["layout"]))


def _device(store: StateStore, settings: SecureSettings) -> SumDevice:
    if not has_key(store.folder):
        raise WireError("this device has no key to sign with: enrol it")
    key = device_key(store.folder)
    return SumDevice(
        store.get("device"),
        key.public_key().public_bytes_raw(),
        key.sign,
        colluding=round(1000 * settings.colluding_share),
        min_members=settings.min_devices,
        groups=settings.groups,
        voucher=own_voucher(store) if settings.voucher else b"",
        vouchers=voucher_check(store, settings),
    )


def _manifest(described: UpdateManifest, message: ToServer) -> UpdateManifest:
    """Describe a message of the sum: nothing is told of the device's examples."""
    part: SumPart = _PART_OF[message.kind]
    data = packed(message)
    sha256 = hashlib.sha256(data).hexdigest()
    changed = {
        "update_id": message_id(described.round, part, described.client, sha256),
        "sum": part,
        "sequence": described.sequence if part == "keys" else None,
        **{"examples": 0, "steps": 0, "class_counts": None, "metrics": {}, "gains": {}},
        **{"precision": "lossless", "compression": "none"},
        **{"size": len(data), "sha256": sha256, "nonce": secrets.token_hex(8), "created": time.time()},
    }
    return UpdateManifest.model_validate({**described.model_dump(), **changed})


def message_id(number: int, part: SumPart, device: str, sha256: str) -> str:
    """Name a message; the same bytes of the same round have the same name."""
    return f"m{number}-{part}-{device[:24]}-{sha256[:16]}"
