"""The atomic write that every package uses: a crash leaves the old file or the new one, and nobody else may read it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gaitway.files import write_file, written_whole
from tests.repository.imports import REPOSITORY

HALF = """
import os, signal, sys
from pathlib import Path
from gaitway.files import written_whole
with written_whole(Path(sys.argv[1])) as file:
    file.write(b"new, but not all")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    write_file(path, b"new")
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"new", ["file"])


def test_whoever_raises_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with pytest.raises(ValueError, match="no room"):
        _write_half(path)
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"old", ["file"])


def _write_half(path: Path) -> None:
    with written_whole(path) as file:
        file.write(b"new")
        raise ValueError("no room")


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    run = subprocess.run([sys.executable, "-c", HALF, str(path)], cwd=REPOSITORY, check=False)
    assert run.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600), (0o644, 0o644)])
def test_permissions_are_the_umasks_or_those_asked_for(tmp_path: Path, mode: int | None, expected: int) -> None:
    before = os.umask(0o027)
    try:
        with written_whole(tmp_path / "file", mode=mode) as file:
            (part,) = tmp_path.iterdir()
            assert stat.S_IMODE(part.stat().st_mode) & ~expected == 0, "at no moment more"
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected


def test_without_replace_the_first_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_file(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_file(path, b"second", replace=False)
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"first", ["key"])
