"""Pipeline, models, methods, export and simulation run where there is no Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gaitway import files
from tests.repository.imports import REPOSITORY


@pytest.mark.ci
def test_a_simulation_runs_without_what_only_unix_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.repository.other_system", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "this system cannot fork" in done.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())


def test_a_files_bytes_are_the_same_where_lines_end_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows opens a file as text unless it is told otherwise, and has no `fchmod`."""
    binary, opened, own_open = 1 << 30, [], os.open

    def open_there(path: Path, flags: int, mode: int) -> int:
        opened.append(bool(flags & binary))
        return own_open(path, flags & ~binary, mode)

    with monkeypatch.context() as patch:
        patch.setattr(files, "BINARY", binary)
        patch.setattr(files, "sync_folder", lambda _: None)
        patch.delattr(os, "fchmod")
        patch.setattr(os, "open", open_there)
        files.write_file(tmp_path / "file", b"a\nb", mode=0o600)
    assert (tmp_path / "file").read_bytes() == b"a\nb"
    assert opened == [True]
