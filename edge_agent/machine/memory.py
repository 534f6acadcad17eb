"""What survives a restart, and the steps that change it: a trained round, an answered update, another plan."""

from __future__ import annotations

import fcntl
import json
import logging
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from edge_agent.config.settings import AgentSection
from edge_agent.errors import ConfigError
from edge_agent.machine.commands import BeginEpoch
from edge_agent.machine.state import Agent
from edge_agent.serving.released_models import OFFER, ORDER, REPORT, kept_adoption, kept_offer, kept_report
from edge_agent.storage.files import place_file, sha256_of
from edge_agent.storage.state_store import Store
from edge_agent.training.job import CHECKPOINTS, CLIENT_STATE, RESULT, UPDATE, Job
from edge_agent.transport.trust import NEWEST
from federation.plan import Plan
from federation.private_files import make_private, opener, private_file
from federation.protocol.messages import UpdateManifest

log = logging.getLogger("edge_agent")

OUTBOX, CLIENTS, MODELS, JOBS = "outbox", "clients", "models", "jobs"
OURS = (OUTBOX, CLIENTS, MODELS, JOBS, CHECKPOINTS, "blobs", "lock", "*.sqlite*", "*.json", "*.key")
"""What an agent makes in its data folder."""


class Kept(NamedTuple):
    """A round whose update and client state are durable."""

    update_id: str
    metrics: dict[str, float]
    seconds: float


def claim(store: Store, me: AgentSection) -> IO[str]:
    """Take the data folder for this process; it is free again when the returned file is closed, also by a kill.

    Raises:
        ConfigError: if another agent works in it, or it belongs to another device or federation.
        DamagedError: if the database has broken pages.
    """
    store.check()
    private_file(store.folder / "lock")
    lock = (store.folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(f"another agent works in {store.folder}; end it, or set another data_dir") from error
    for name, mine in (("device", me.device), ("federation", me.federation)):
        if (owner := store.get(name)) not in ("", mine):
            lock.close()
            raise ConfigError(f"{store.folder} belongs to {name} {owner!r}, not {mine!r}; set another data_dir")
    if not store.get("device") or not store.get("federation"):
        store.put(device=me.device, federation=me.federation)
    if opened := make_private(store.folder, OURS):
        log.warning("%d files and folders in %s could be read by others; now they cannot", opened, store.folder)
    return lock


def is_claimed(store: Store) -> bool:
    """Whether an agent works in the data folder now."""
    with open(store.folder / "lock", "w", opener=opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def remembered(store: Store) -> Agent:
    """Return the state to start with after a restart: rounds that were trained are not trained again."""
    _sweep(store)
    rows, epoch = store.rounds(), store.epoch
    return Agent(
        identity=store.get("identity"),
        epoch=epoch,
        done=frozenset((row.round, row.base) for row in rows if row.epoch == epoch),
        outbox=tuple(store.outbox()),
        final=store.get("final"),
        offer=kept_offer(store),
        report=kept_report(store),
        adoption=kept_adoption(store),
        metrics=rows[-1].result.get("metrics", {}) if rows else {},
    )


def kept_plan(store: Store) -> Plan | None:
    """Return the plan that the device last collected for, if it is still in the same federation."""
    text = store.get("plan")
    if not text or not store.get("identity"):
        return None
    try:
        return Plan.model_validate_json(text)
    except ValidationError:
        return None  # another version wrote it; the next announcement brings it anew


def keep_round(store: Store, job: Job) -> Kept:
    """Move a finished round's files to where they last, then note them in one transaction.

    Raises:
        OSError: if the files cannot be kept.
        ValueError: if the process left a result or an update that cannot be described.
    """
    result = json.loads((job.out / RESULT).read_bytes())
    manifest = manifest_of(job, result, job.out / UPDATE, store.get("identity").partition("/")[0])
    update, client = store.folder / OUTBOX / manifest.update_id, store.folder / CLIENTS / manifest.update_id
    place_file(job.out / UPDATE, update)
    place_file(job.out / CLIENT_STATE, client)
    store.keep_update(manifest, update, result, str(client.relative_to(store.folder)))
    for other in client.parent.iterdir():
        if other != client:
            other.unlink()
    shutil.rmtree(job.checkpoints, ignore_errors=True)
    return Kept(manifest.update_id, result["metrics"], result["seconds"])


def manifest_of(job: Job, result: Mapping[str, Any], update: Path, instance: str) -> UpdateManifest:
    """Describe an update of a founding; its id is the same for the same bytes of the same round."""
    sha256 = sha256_of(update)
    return UpdateManifest(
        update_id=f"r{job.round}-{job.device[:36]}-{sha256[:16]}",
        federation=job.federation,
        instance=instance,
        client=job.device,
        round=job.round,
        method=str(job.plan.method.get("name", "")),
        base_version=job.broadcast_sha256,
        examples=result["examples"],
        steps=result["steps"],
        class_counts=tuple(result["class_counts"]),
        precision=job.precision,
        compression=job.compression,
        size=update.stat().st_size,
        sha256=sha256,
        chunk_bytes=job.chunk_bytes,
        nonce=secrets.token_hex(8),
        created=time.time(),
        metrics=result["metrics"],
    )


def forget_update(store: Store, update_id: str, status: str, reason: str) -> None:
    """Note the server's answer, then delete the update's file."""
    path = store.outbox().get(update_id)
    store.forget_update(update_id, status, reason)
    if path:
        path.unlink(missing_ok=True)


def begin_epoch(store: Store, begun: BeginEpoch) -> None:
    """Keep that the server was restored; rounds of earlier epochs stay as history and count no more."""
    trained = max((row.round for row in store.rounds() if row.update_id), default=0)
    restored = {"epoch": begun.epoch, "at": begun.at, "round": begun.round, "trained": trained}
    reason = "the server was restored before it had answered"
    store.begin_epoch(begun.epoch, reason, restored=json.dumps(restored), **{REPORT: "", ORDER: "", OFFER: ""})
    for name in (OUTBOX, CHECKPOINTS):
        shutil.rmtree(store.folder / name, ignore_errors=True)


def restored_words(store: Store) -> str:
    """Say that the server was restored, and from where on this device trains again; empty if it never was."""
    text = store.get("restored")
    if not text:
        return ""
    known = json.loads(text)
    at = time.strftime(" on %Y-%m-%d %H:%M:%S UTC", time.gmtime(known["at"])) if known["at"] else ""
    return (
        f"The server was restored from a backup{at}, when it began epoch {known['epoch']}: it stood at round "
        f"{known['round']} then, while this device had trained up to round {known['trained']}. "
        f"The device trains again what the server asks for."
    )


def start_over(store: Store, identity: str, epoch: int) -> None:
    """Forget everything learnt in another founding of the federation, or by another network."""
    kept = {name: store.get(name) for name in ("device", "federation", NEWEST)}
    store.reset(identity=identity, epoch=str(epoch), **kept)
    for name in (OUTBOX, CLIENTS, MODELS, JOBS, CHECKPOINTS):
        shutil.rmtree(store.folder / name, ignore_errors=True)


def _sweep(store: Store) -> None:
    """Delete what a kill left behind: the jobs, and files in place that no row names yet."""
    shutil.rmtree(store.folder / JOBS, ignore_errors=True)
    named = {path.name for path in store.outbox().values()}
    for folder, names in ((OUTBOX, named), (CLIENTS, {Path(store.get("client_state")).name})):
        for path in (store.folder / folder).glob("*"):
            if path.name not in names:
                path.unlink()
