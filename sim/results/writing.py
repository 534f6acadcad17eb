"""What a run says where it cannot write: what it wanted to write where, why it cannot, what is kept, and what to do."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.errors import RunDirectoryError
from sim.rounds import checkpoint

CHECKPOINT = "checkpoint.bin"
"""The file from which a run resumes."""

_FULL = {
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "this user's share of the disk is used up",
    errno.EFBIG: "the file would be larger than this process may write (see `ulimit -f`)",
}
_FORBIDDEN = {
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
}
_ELSEWHERE = {
    errno.EEXIST: "it is a file, not a folder",
    errno.ENOTDIR: "a part of it is a file, not a folder",
    errno.EROFS: "the disk can only be read",
}


@contextmanager
def writing(what: str, out: Path) -> Iterator[None]:
    """Write `what` into a run's directory `out`.

    Raises:
        RunDirectoryError: if that fails; it says what is kept, and how the run is resumed.
    """
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {what} into {out}: {reason(error, out)}. {_advice(error, out)}"
        ) from error


def reason(error: OSError, folder: Path) -> str:
    """Say in words why nothing can be written into a folder, with what its disk has left where it is full."""
    known = {**_FULL, **_FORBIDDEN, **_ELSEWHERE}.get(error.errno or 0)
    if known is None:
        return error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        there = next((ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists()), Path("/"))
        return f"{known}, {shutil.disk_usage(there).free:,} bytes are left"
    return known


def _advice(error: OSError, out: Path) -> str:
    if error.errno in _ELSEWHERE:
        return "Choose another --out"
    remedy = "Make room" if error.errno in _FULL else "Let this user write there" if error.errno in _FORBIDDEN else ""
    again = f"{remedy} and give the same command again" if remedy else "Give the same command again"
    done = _resumed_after(out)
    if done is None:
        return f"{again}, or choose another --out; no round is kept yet, so the run begins anew"
    return f"{again}: rounds 1 to {done} are kept in {CHECKPOINT}, and the run resumes after them"


def _resumed_after(out: Path) -> int | None:
    """Return the last round of the checkpoint; None without one that can be read."""
    try:
        kept = checkpoint.load(out / CHECKPOINT, "cpu")
    except (RunDirectoryError, OSError):
        return None
    return kept.round_number if kept else None
