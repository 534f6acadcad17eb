"""The state that survives a restart, and its changes: a trained round, an answered update, another plan."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from edge_agent.machine.commands import BeginEpoch, PrepareWithdrawal
from edge_agent.machine.state import Agent, Candidate, Contribution
from edge_agent.storage.consent import (
    CONTINUOUS,
    CONTRIBUTION,
    HOME_ASSISTANT_TOPICS,
    HOME_ASSISTANT_WISH,
    PIN,
    WISH,
    participation,
    pinned_promises,
)
from edge_agent.storage.credentials import OWN_VOUCHER, REVOKED
from edge_agent.storage.data_folder import (
    CANDIDATES,
    CHECKPOINTS,
    CLIENTS,
    JOBS,
    MODELS,
    OUTBOX,
    SUMS,
    move_file,
    sha256_of,
    write_file,
)
from edge_agent.storage.state_store import (
    NEWEST_ANNOUNCEMENT,
    RELEASE_OFFER,
    RELEASE_ORDER,
    RELEASE_REPORT,
    REPORTED_GAINS,
    StateStore,
)
from edge_agent.supervisor import secure_sum
from edge_agent.training.job import (
    CHECKPOINT,
    CLIENT_STATE,
    KEY_BYTES,
    MIDWAY,
    RESULT,
    UPDATE,
    WINDOW_KEYS,
    Job,
    candidate_path,
    midway_path,
)
from federation.plan import Plan
from federation.privacy.promises import NO_PROMISES, PrivacyPromises, required
from federation.protocol.messages import MAX_AHEAD_MS, BlobPointer, UpdateManifest

log = logging.getLogger(__name__)


KEPT_REPORTS = 3
"""Of how many rounds a device remembers what it has reported of its models' gains."""
SEQUENCE = "sequence"
"""Name in the store of the last running number that this device gave an update to a continuous federation."""


class SavedRound(NamedTuple):
    """A round whose update and client state are durable; `keys` and `sequence` as in `Contribution`, of sums."""

    update_id: str
    metrics: dict[str, float]
    seconds: float
    keys: frozenset[int] = frozenset()
    sequence: int = 0


def load_agent(store: StateStore, privacy: PrivacyPromises = NO_PROMISES) -> Agent:
    """Return the state to start with after a restart: rounds that were trained are not trained again.

    privacy: what the device's settings require of a plan.
    """
    _remove_leftovers(store)
    pinned = pinned_promises(store)
    requires = required(pinned, privacy)
    if requires.mode == "masked":
        _drop_clear_updates(store)
    rows, epoch = store.rounds(), store.epoch
    takes_part, sent, outbox = participation(store).takes_part, load_contribution(store), tuple(store.outbox())
    if not takes_part:  # nothing leaves but the withdrawal
        leaving = sent.update_id if sent is not None and sent.kind == "withdrawn" else ""
        outbox = tuple(name for name in outbox if name == leaving)
    return Agent(
        identity=store.get("identity"),
        epoch=epoch,
        done=frozenset((row.round, row.base) for row in rows if row.epoch == epoch),
        outbox=outbox,
        takes_part=takes_part,
        contribution=sent,
        candidates=load_candidates(store),
        judged_global=store.get("judged_global"),
        offer=store.release_offer(),
        report=store.release_report(),
        adoption=store.adoption_report(),
        metrics=rows[-1].result.get("metrics", {}) if rows else {},
        pinned=pinned,
        required=requires,
    )


def _drop_clear_updates(store: StateStore) -> None:
    """Delete updates that the server would see as such: they were made before this device required secure sums."""
    for update_id in store.outbox():
        manifest = store.manifest(update_id)
        if manifest.sum is None and not manifest.withdraw:
            forget_update(store, update_id, "refused", "this device requires secure sums (masked)")


def load_plan(store: StateStore) -> Plan | None:
    """Return the plan that the device last collected for, if it is still in the same federation."""
    text = store.get("plan")
    if not text or not store.get("identity"):
        return None
    try:
        return Plan.model_validate_json(text)
    except ValidationError:
        return None  # another version wrote it; the next announcement brings it anew


def save_round(store: StateStore, job: Job) -> SavedRound:
    """Move a finished round's files to where they last, then note them in one transaction.

    Raises:
        OSError: if the files cannot be kept.
        ValueError: if the process left a result or an update that cannot be described.
    """
    result = json.loads((job.out / RESULT).read_bytes())
    sent = _contribution(store, job) if job.continuous else None
    instance, sequence = store.get("identity").partition("/")[0], sent.sequence if sent else None
    manifest = manifest_of(job, result, job.out / UPDATE, instance, sequence)
    update, client = store.folder / OUTBOX / manifest.update_id, store.folder / CLIENTS / manifest.update_id
    pairs: dict[str, str] = {}
    if job.plan.secure.is_on:  # by the plan, so that a result without its sum fails rather than goes out in the clear
        begun = secure_sum.begin(store, job.plan, job.sum_request, manifest, job.out / UPDATE, result["sum"])
        manifest, update, pairs = begun
    else:
        move_file(job.out / UPDATE, update)
    move_file(job.out / CLIENT_STATE, client)
    candidates = [candidate for candidate in load_candidates(store) if candidate.round != job.round]
    if (job.out / CHECKPOINT).is_file():  # a copy: the process goes on to export it
        kept = candidate_path(store.folder, job.round)
        write_file(kept, (job.out / CHECKPOINT).read_bytes())
        if (job.out / MIDWAY / CHECKPOINT).is_file():
            write_file(midway_path(kept), (job.out / MIDWAY / CHECKPOINT).read_bytes())
        candidates.append(Candidate(job.round, job.model))
    pairs |= {"client_state": str(client.relative_to(store.folder)), **_candidates_json(candidates)}
    if sent is not None:
        sent = replace(sent, update_id=manifest.update_id)
        pairs |= {SEQUENCE: str(sent.sequence), CONTRIBUTION: contribution_json(sent)}
    pairs[REPORTED_GAINS] = reported_gains_json(store, job.round, result.get("gains", {}))
    store.keep_update(manifest, update, result, **pairs)
    _keep_only(client.parent, {client.name})
    _keep_only(store.folder / SUMS, secure_sum.files_of(store))
    shutil.rmtree(job.checkpoints, ignore_errors=True)
    of_sums = (sent.keys, sent.sequence) if sent else ()
    return SavedRound(manifest.update_id, result["metrics"], result["seconds"], *of_sums)


def _contribution(store: StateStore, job: Job) -> Contribution:
    """Return the whole sums of a job, with a number; masked ones keep it until enough windows have changed."""
    keys, before = read_keys((job.out / WINDOW_KEYS).read_bytes()), load_contribution(store)
    is_numbered = job.plan.secure.is_on and before is not None and before.sequence > 0
    if is_numbered and before and len(before.keys ^ keys) < job.plan.publication.send_after_windows:
        return before
    return Contribution("sums", "", keys, next_sequence(store))


def reported_gains_json(store: StateStore, round_number: int, gains: Mapping[str, Sequence[int]]) -> str:
    """Add a round's report to those of the last rounds, which a device takes out of the server's sums."""
    kept = json.loads(store.get(REPORTED_GAINS) or "{}")
    newest = sorted({**kept, str(round_number): gains}.items(), key=lambda item: int(item[0]))[-KEPT_REPORTS:]
    return json.dumps(dict(newest))


def next_sequence(store: StateStore) -> int:
    """Return a running number above all before, also those of a data folder that was lost, by the clock.

    What a wrong clock gave is more than a day ahead of a right one, and no server has taken it.
    """
    last, now_ms = int(store.get(SEQUENCE) or 0), time.time_ns() // 1_000_000
    return max(0 if last > now_ms + MAX_AHEAD_MS else last + 1, now_ms)


def prepare_withdrawal(store: StateStore, command: PrepareWithdrawal) -> str:
    """Put the message that takes this device's sums out into the outbox, in place of all there; returns its id.

    What the device has learnt for itself stays.
    """
    device, sequence, nothing = store.get("device"), next_sequence(store), hashlib.sha256().hexdigest()
    manifest = UpdateManifest(
        update_id=f"s{sequence}-{device[:36]}-out",
        federation=store.get("federation"),
        instance=store.get("identity").partition("/")[0],
        client=device,
        round=command.round,
        method=command.method,
        base_version=command.base,
        examples=0,
        steps=0,
        size=0,
        sha256=nothing,
        chunk_bytes=command.chunk_bytes,
        nonce=secrets.token_hex(8),
        created=time.time(),
        sequence=sequence,
        withdraw=True,
    )
    path, before = store.folder / OUTBOX / manifest.update_id, store.outbox()
    write_file(path, b"")
    sent = contribution_json(Contribution("withdrawn", manifest.update_id))
    store.replace_outbox(manifest, path, **{SEQUENCE: str(sequence), CONTRIBUTION: sent})
    for other in before.values():
        other.unlink(missing_ok=True)
    return manifest.update_id


def load_contribution(store: StateStore) -> Contribution | None:
    """Return what the server has of this device, once it has answered; None before anything was sent."""
    return contribution_from_json(store.get(CONTRIBUTION))


def forget_contribution(store: StateStore) -> None:
    """Note that it is not known what the server has of this device."""
    store.put(**{CONTRIBUTION: contribution_json(Contribution("unknown"))})


def manifest_of(
    job: Job, result: Mapping[str, Any], update: Path, instance: str, sequence: int | None = None
) -> UpdateManifest:
    """Describe an update of one federation instance; its id is the same for the same bytes of the same round.

    An update to a continuous federation has a running number instead, which its id begins with.
    """
    sha256 = sha256_of(update)
    number = f"r{job.round}-{job.device[:36]}-{sha256[:16]}"
    if sequence is not None:
        number = f"s{sequence}-{job.device[:36]}-{sha256[:8]}"
    return UpdateManifest(
        update_id=number,
        sequence=sequence,
        federation=job.federation,
        instance=instance,
        client=job.device,
        round=job.round,
        method=str(job.plan.method.get("name", "")),
        base_version=job.model.sha256,
        examples=result["examples"],
        steps=result["steps"],
        class_counts=result["class_counts"] and tuple(result["class_counts"]),
        precision=job.precision,
        compression=job.compression,
        runtime=job.runtime,
        processor=result.get("processor", "cpu"),
        size=update.stat().st_size,
        sha256=sha256,
        chunk_bytes=job.chunk_bytes,
        nonce=secrets.token_hex(8),
        created=time.time(),
        metrics=result["metrics"],
        gains=result.get("gains", {}),
    )


def load_candidates(store: StateStore) -> tuple[Candidate, ...]:
    """Return the trained rounds whose models are not judged yet, oldest first."""
    noted = json.loads(store.get("candidates") or "[]")
    return tuple(Candidate(entry["round"], BlobPointer.model_validate(entry["model"])) for entry in noted)


def forget_candidate(store: StateStore, round_number: int) -> None:
    """Delete a trained round's checkpoint: its model was judged, or cannot be."""
    store.put(
        **_candidates_json([candidate for candidate in load_candidates(store) if candidate.round != round_number])
    )
    kept = candidate_path(store.folder, round_number)
    for path in (kept, midway_path(kept)):
        path.unlink(missing_ok=True)


def _candidates_json(candidates: Sequence[Candidate]) -> dict[str, str]:
    rows = [{"round": candidate.round, "model": candidate.model.model_dump(mode="json")} for candidate in candidates]
    return {"candidates": json.dumps(rows)}


def forget_update(store: StateStore, update_id: str, status: str, reason: str) -> None:
    """Note the server's answer, then delete the update's file."""
    path = store.outbox().get(update_id)
    store.forget_update(update_id, status, reason)
    if path:
        path.unlink(missing_ok=True)


def begin_epoch(store: StateStore, begun: BeginEpoch) -> None:
    """Keep that the server was restored; rounds of earlier epochs stay as history and count no more."""
    trained = max((row.round for row in store.rounds() if row.update_id), default=0)
    sent = load_contribution(store)
    if sent and store.get(CONTINUOUS) != "masked":
        sent = Contribution("unknown")
    restored = {"epoch": begun.epoch, "at": begun.at, "round": begun.round, "trained": trained}
    reason = "the server was restored before it had answered"
    store.begin_epoch(
        begun.epoch,
        reason,
        restored=json.dumps(restored),
        **{RELEASE_REPORT: "", RELEASE_ORDER: "", RELEASE_OFFER: "", secure_sum.SUM: ""},
        **{CONTRIBUTION: contribution_json(sent)},
    )
    for name in (OUTBOX, CHECKPOINTS, SUMS):
        shutil.rmtree(store.folder / name, ignore_errors=True)


def _keep_only(folder: Path, names: Collection[str]) -> None:
    for path in folder.glob("*"):
        if path.name not in names:
            path.unlink()


def reset_agent(store: StateStore, identity: str, epoch: int) -> None:
    """Forget everything learnt in another instance of the federation, or by another network."""
    names = (
        "device",
        "federation",
        NEWEST_ANNOUNCEMENT,
        WISH,
        PIN,
        OWN_VOUCHER,
        REVOKED,
        SEQUENCE,
        HOME_ASSISTANT_WISH,
        HOME_ASSISTANT_TOPICS,
    )
    kept = {name: store.get(name) for name in names}
    store.reset(identity=identity, epoch=str(epoch), **kept)
    for name in (OUTBOX, CLIENTS, MODELS, JOBS, CHECKPOINTS, CANDIDATES, SUMS):
        shutil.rmtree(store.folder / name, ignore_errors=True)


def _remove_leftovers(store: StateStore) -> None:
    """Delete what a kill left behind: the jobs, and files in place that no row names yet."""
    shutil.rmtree(store.folder / JOBS, ignore_errors=True)
    named = {path.name for path in store.outbox().values()}
    kept_rounds = [candidate_path(store.folder, candidate.round) for candidate in load_candidates(store)]
    candidates = {path.name for kept in kept_rounds for path in (kept, midway_path(kept))}
    clients = {Path(store.get("client_state")).name}
    kept = ((OUTBOX, named), (SUMS, secure_sum.files_of(store)), (CLIENTS, clients), (CANDIDATES, candidates))
    for folder, names in kept:
        _keep_only(store.folder / folder, names)


def keys_text(keys: frozenset[int]) -> str:
    """Write windows' numbers as text."""
    return base64.b64encode(b"".join(key.to_bytes(KEY_BYTES, "big") for key in sorted(keys))).decode()


def read_keys(data: bytes) -> frozenset[int]:
    """Read windows' numbers as the training process writes them."""
    return frozenset(int.from_bytes(data[at : at + KEY_BYTES], "big") for at in range(0, len(data), KEY_BYTES))


def contribution_json(sent: Contribution | None) -> str:
    """Write a contribution as it is kept; empty: there is none."""
    if sent is None:
        return ""
    keys = keys_text(sent.keys)
    return json.dumps({"kind": sent.kind, "update_id": sent.update_id, "keys": keys, "sequence": sent.sequence})


def contribution_from_json(text: str) -> Contribution | None:
    """Read a contribution that was kept."""
    noted = json.loads(text or "null")
    if noted is None:
        return None
    keys = read_keys(base64.b64decode(noted.get("keys", "")))
    return Contribution(noted["kind"], noted.get("update_id", ""), keys, noted.get("sequence", 0))
