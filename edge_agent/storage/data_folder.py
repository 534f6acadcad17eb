"""The device's data folder: its files, its identity, and the lock of its one process. Files are written atomically."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edge_agent.config.settings import AgentSection
from edge_agent.errors import ConfigError, DiskFullError
from edge_agent.storage.state_store import StateStore
from gaitway import files
from gaitway.files import FILE, make_private, opener, private_file, private_folder

log = logging.getLogger(__name__)

OUTBOX, CLIENTS, MODELS, JOBS, CHECKPOINTS, BLOBS = "outbox", "clients", "models", "jobs", "checkpoints", "blobs"
NETWORKS = "networks"
"""ONNX files of continuous federations' networks, as the server exported them."""
SUM_MESSAGES = "sum-messages"
"""Lists of a secure sum's members and signatures, where they are long."""
SUMS = "sums"
"""A device's own numbers in the secure sum of a round."""
CANDIDATES = "candidates"
"""Models that were trained and are not exported and judged yet."""
AGENT_FILES = (
    OUTBOX,
    CLIENTS,
    MODELS,
    JOBS,
    CHECKPOINTS,
    CANDIDATES,
    BLOBS,
    NETWORKS,
    SUMS,
    SUM_MESSAGES,
    "lock",
    "*.sqlite*",
    "*.json",
    "*.key",
)
"""What an agent makes in its data folder."""


def require_folder(folder: Path) -> None:
    """Make the device's data folder where there is none.

    Raises:
        ConfigError: if there is something else in its place, or this user may not write there.
    """
    user = f"the user with the number {os.geteuid()}"
    try:
        private_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"[agent] data_dir {folder} is a file or lies below one; name a folder") from error
    except OSError as error:
        todo = f"make it, owned by {user}, mount what is missing, or name another"
        raise ConfigError(f"[agent] data_dir {folder} cannot be made: {error.strerror}; {todo}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"[agent] data_dir {folder} cannot be written by {user}; `chown` it, or name another")


def lock_folder(store: StateStore, me: AgentSection) -> IO[str]:
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
        raise ConfigError(f"another agent is using {store.folder}; stop it, or set another data_dir") from error
    for name, expected in (("device", me.device), ("federation", me.federation)):
        if (owner := store.get(name)) not in ("", expected):
            lock.close()
            raise ConfigError(f"{store.folder} belongs to {name} {owner!r}, not {expected!r}; set another data_dir")
    if not store.get("device") or not store.get("federation"):
        store.put(device=me.device, federation=me.federation)
    if opened := make_private(store.folder, AGENT_FILES):
        log.warning("permissions tightened entries=%d folder=%s: others could read them", opened, store.folder)
    return lock


def is_locked(store: StateStore) -> bool:
    """Whether an agent works in the data folder now."""
    with open(store.folder / "lock", "w", opener=opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


BLOCK_BYTES = 1 << 20


def write_file(path: Path, data: bytes) -> None:
    """Replace a file that is its owner's alone, and make its folder; a crash leaves the old content or the new."""
    private_folder(path.parent)
    files.write_file(path, data, mode=FILE)


def move_file(source: Path, target: Path) -> None:
    """Move a finished file on the same file system; afterwards it survives a power cut."""
    private_folder(target.parent)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(source, target)
    files.sync_folder(target.parent)


def sha256_of(path: Path) -> str:
    """Hash a file block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def tolerate_full_disk(what: str) -> Iterator[None]:
    """Go on where a note cannot be kept because the disk is full; it is a note about what can be found out again."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, DiskFullError) and error.errno != errno.ENOSPC:
            raise
        log.error("%s not saved: %s", what, error)
