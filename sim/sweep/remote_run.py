"""A run on another host: its arguments with the files that it starts from, and the directory that comes back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sim.engines.choice import usable_cores
from sim.experiment.initialization import global_model_of
from sim.results.writing import CHECKPOINT
from sim.sweep.grid import Cell
from sim.sweep.processes import ONE_THREAD, PLAIN_OUTPUT, command, share_of

READ_THERE = ("--data-root", "--cache")
"""Options of `sim run` that name folders of the host on which it runs."""
SENT_ALONG = ("--plan", "--init", "--describe")
"""Options of `sim run` that name files which go along with it."""


class SentFile(NamedTuple):
    """A file that goes along."""

    name: str
    content: bytes


def packed_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[int, SentFile]]:
    """Return a run's arguments as another host takes them, and by their place in them the files that go along."""
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        words += [option, value] if equals and option in (*READ_THERE, *SENT_ALONG) else [word]
    files: dict[int, SentFile] = {}
    for place, (option, value) in enumerate(pairwise(tuple(words)), start=1):
        path = Path(value).absolute()
        if option in (*READ_THERE, *SENT_ALONG):
            words[place] = str(path)
        if option in SENT_ALONG and (file := global_model_of(path) if path.is_dir() else path).is_file():
            files[place] = SentFile(file.name, file.read_bytes())
    return tuple(words), files


class RemoteResult(NamedTuple):
    """What comes back: how the run's process ended, what it said, and its directory as a zip without the checkpoint."""

    code: int
    log: bytes
    directory: bytes


def run_elsewhere(name: str, arguments: Sequence[str], places: Sequence[int], *files: SentFile) -> RemoteResult:
    """Run a cell in a temporary folder of this host, with the files that came along for these of its arguments."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, given = Path(temporary), list(arguments)
        for place, file in zip(places, files, strict=True):
            path = folder / "given" / str(place) / file.name
            path.parent.mkdir(parents=True)
            path.write_bytes(file.content)
            given[place] = str(path)
        cell = Cell(name, {}, tuple(given))
        words = [sys.executable, *command(cell, folder / "runs"), *share_of(cell, usable_cores())]
        environment = {**os.environ, **ONE_THREAD, **PLAIN_OUTPUT}
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        return RemoteResult(ended.returncode, ended.stdout, _packed(folder / "runs" / name))


def _packed(directory: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != CHECKPOINT:
                archive.write(path, path.relative_to(directory))
    return packed.getvalue()
