"""What a run says on a full disk, in a folder of somebody else, and of a limit; and that it resumes afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.cli.app import app
from sim.errors import RunDirectoryError
from sim.results.run_directory import writing

DATA = "--preset synthetic-smoke --model har_cnn --method fedavg --set data.minutes=1.5 --set data.phones=1"
RUNNING = "--engine serial --rounds 1 --checkpoint-every 0"
SMALL_MODEL = ("--set", "model.channels=[8,8]", "--set", "model.feature_dim=16", "--set", "model.hidden=8")


def run(out: Path, cache: Path, *more: str) -> tuple[int, str]:
    """Simulate as from a shell; returns the exit code and what was printed."""
    words = [*f"{DATA} {RUNNING}".split(), "--out", str(out), "--cache", str(cache), *more]
    done = CliRunner().invoke(app, ["run", *words])
    return done.exit_code, done.output


def said(ended: tuple[int, str]) -> str:
    """Return the sentence with which a run has ended."""
    code, printed = ended
    assert code == 2, printed
    return printed[printed.index("error:") :].strip()


@contextmanager
def no_larger_file_than(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as `ulimit -f` does; Python ignores the signal, so writing fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, with 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.ci
def test_a_full_disk_is_said_with_what_is_kept_and_the_run_resumes_once_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    out, ballast, cache = small_disk / "run", small_disk / "ballast", tmp_path / "cache"
    code, printed = run(out, cache, *SMALL_MODEL)
    assert code == 0, printed
    ballast.touch()
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass  # until nothing is left
    words = said(run(out, cache, *SMALL_MODEL))
    assert re.match(
        rf"error: cannot write .* into {re.escape(str(out))}: there is no room on the disk, [\d,]+ bytes are left\. ",
        words,
    )
    assert "Make room and give the same command again: rounds 1 to 1 are kept in checkpoint.bin" in words
    ballast.unlink()
    code, printed = run(out, cache, *SMALL_MODEL)
    assert code == 0, printed
    assert "round 1 loss" not in printed  # it was not trained a second time
    assert json.loads((out / "summary.json").read_text())


@pytest.mark.ci
def test_a_checkpoint_that_does_not_fit_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with no_larger_file_than(1_200_000):  # the windows are smaller, the checkpoint of three models of 494 kB is not
        words = said(run(out, tmp_path / "cache"))
    assert f"cannot write the checkpoint of round 1 (checkpoint.bin) into {out}" in words
    assert "larger than this process may write (see `ulimit -f`)" in words
    assert "no round is kept yet, so the run begins anew" in words
    assert run(out, tmp_path / "cache")[0] == 0


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "cache"
    cache.write_text("mine")
    code, printed = run(tmp_path / "run", cache, *SMALL_MODEL)
    assert code == 0, printed
    assert f"prepared windows cannot be stored in {cache}: File exists; name another folder with --cache" in caplog.text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())
    assert cache.read_text() == "mine"


@pytest.mark.parametrize("below", [".", "run"])
def test_a_file_in_the_place_of_the_folder_is_refused_with_advice(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    words = said(run(file / below, tmp_path / "cache"))
    assert re.search(r"a file, not a folder\. Choose another --out", words)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (13, r"this user may not write there\. Let this user write there and give the same command again"),
        (30, r"the disk can only be read\. Choose another --out"),
        (122, r"this user's share of the disk is used up\. Make room and give the same command again"),
        (5, r"Input/output error\. Give the same command again"),
    ],
)
def test_each_reason_has_its_advice(tmp_path: Path, number: int, words: str) -> None:
    with (
        pytest.raises(RunDirectoryError, match=rf"^cannot write the models into {re.escape(str(tmp_path))}: {words}"),
        writing("the models", tmp_path),
    ):
        raise OSError(number, os.strerror(number), "x")
