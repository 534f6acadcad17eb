"""The directory of a run: typed reading of its files, finished or not, and the writing of those that grow by round."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gaitway.errors import first_problem
from gaitway.files import write_file
from sim.errors import RunDirectoryError
from sim.rounds import checkpoint
from sim.rounds.checkpoint import Checkpoint
from sim.scores.records import ClientExamples, ClientScore, Confusions, RoundRecord, RunConfig, Selection, Summary

T = TypeVar("T")


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory; every file but `config.json` may be missing while the run goes on.

    Raises RunDirectoryError on opening if `path` holds no readable `config.json`, and on reading a damaged file.
    """

    path: Path

    def __post_init__(self) -> None:
        """Fail early on a directory that is not a run's."""
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / "config.json").is_file():
            problem = "has no config.json" if self.path.is_dir() else "is not a directory"
            raise RunDirectoryError(f"{self.path} {problem}; expected the --out of `python -m sim run`")
        _ = self.config

    @cached_property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self._require("config.json", RunConfig)

    @cached_property
    def clients(self) -> Mapping[str, ClientExamples]:
        """Examples of each client; empty before the data is prepared."""
        return self._read("clients.json", dict[str, ClientExamples]) or {}

    @cached_property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds done so far, in order; a last line that a kill cut short of its newline is left out."""
        path = self.path / "rounds.jsonl"
        if not path.is_file():
            return ()
        whole = path.read_text("utf-8").rpartition("\n")[0]
        adapter = TypeAdapter(RoundRecord)
        return tuple(
            _parse(adapter, line, f"{path}, line {number}") for number, line in enumerate(whole.splitlines(), 1)
        )

    @cached_property
    def summary(self) -> Summary | None:
        """The final scores; None until the run is finished."""
        return self._read("summary.json", Summary)

    @cached_property
    def client_scores(self) -> Mapping[str, ClientScore]:
        """Scores of each client at the best round; empty until the run is finished."""
        return self._read("client_scores.json", dict[str, ClientScore]) or {}

    @cached_property
    def confusions(self) -> Confusions:
        """Confusion matrices at the best round; all None until the run is finished."""
        return self._read("confusion.json", Confusions) or Confusions()

    @property
    def final(self) -> Summary:
        """The summary of a finished run; raises ValueError for another."""
        if self.summary is None:
            raise ValueError(f"{self.path} is not finished")
        return self.summary

    @property
    def finished(self) -> bool:
        """Whether the last round is done and summarized."""
        return self.summary is not None

    def worst_tenth(self, metric: str, selection: Selection = "best") -> float | None:
        """Return mean personalization of the worst tenth of the clients by that metric, one client at least."""
        rounds = [chosen for s in self.client_scores.values() if (chosen := s.selected(selection))]
        scores = [record.mean("personalization", metric) for record in rounds]
        sign = 1 if self.config.metrics[metric].higher_is_better else -1
        known = [sign * score for score in scores if score is not None]
        return sign * lowest_tenth(known) if known else None

    @property
    def evaluated_rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds that have scores."""
        return tuple(record for record in self.rounds if record.personalization is not None)

    def _read(self, name: str, kind: type[T]) -> T | None:
        return self._require(name, kind) if (self.path / name).is_file() else None

    def _require(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        return _parse(TypeAdapter(kind), path.read_text("utf-8"), str(path))


def _parse(adapter: TypeAdapter[T], text: str, where: str) -> T:
    """Read JSON, or say which key of which file is wrong and what came."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise RunDirectoryError(
            f"{where}: {first_problem(error)}; the file is damaged, not a run's, or another version's"
        ) from error


WRITTEN = (
    *("checkpoint.bin", "rounds.jsonl", "summary.json", "client_scores.json", "confusion.json", "plan.json"),
    *("clients.json", "partition.png", "images.safetensors", "report.html", "mlflow.json"),
    *("models", "plots", "analysis", "tensorboard", "config.json"),
)
"""What programs leave in a run's directory; a run that lacks the first two of them begins anew."""


def delete_run(path: Path) -> None:
    """Delete what a run has left in its directory, and nothing of anybody else's; do nothing where there is no run."""
    if not (path / "config.json").is_file():
        return
    for name in WRITTEN:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
        else:
            (path / name).unlink(missing_ok=True)


def model_file(run: Path, name: str) -> Path:
    """Return where a run has a client's model of the best round or, as `global`, the server's last."""
    return run / "models" / f"{name}.safetensors"


def round_model_file(run: Path, number: int) -> Path:
    """Return where a run that analyses its rounds has the server's model after one of them."""
    return run / "models" / "rounds" / f"{number:06d}.safetensors"


def lowest_tenth(scores: Sequence[float]) -> float:
    """Return mean of the lowest tenth of the clients' scores (K,): ⌊K/10⌋ of them, one at least; NaN for none."""
    lowest = sorted(scores)[: max(1, len(scores) // 10)]
    return float(np.mean(lowest)) if lowest else float("nan")


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


WRITING_SHARE = 0.05
"""Large federations have checkpoints of gigabytes: no more than this share of the time goes into writing them."""


@dataclass
class RunFiles:
    """The files of a run's directory that change with every round."""

    out: Path
    checkpoint_every_s: float
    pause_s: float = 0.0
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def opened(cls, out: Path, checkpoint_every_s: float) -> RunFiles:
        """Make the directory where it is not there yet."""
        with writing("the run's directory", out):
            out.mkdir(parents=True, exist_ok=True)
        return cls(out, checkpoint_every_s, checkpoint_every_s)

    def writing(self, what: str) -> AbstractContextManager[None]:
        """Write `what`; raises RunDirectoryError, saying what is kept, if that fails."""
        return writing(what, self.out)

    def checkpoint(self, device: str) -> Checkpoint | None:
        """Return what an interrupted run has left to resume from; None where the run begins."""
        self.saved_at = time.monotonic()
        return checkpoint.load(self.out / CHECKPOINT, device)

    def keep_rounds(self, rounds: int) -> None:
        """Drop the lines that a kill left after the checkpoint; those rounds are played again."""
        path = self.out / "rounds.jsonl"
        with self.writing("the rounds' scores (rounds.jsonl)"):
            lines = path.read_text().splitlines()[:rounds] if path.exists() else []
            write_file(path, "".join(line + "\n" for line in lines).encode())

    def append(self, record: dict[str, Any]) -> None:
        """Write the line of a round."""
        what = f"the scores of round {record['round']} (rounds.jsonl)"
        with self.writing(what), (self.out / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough for another."""
        return time.monotonic() - self.saved_at >= self.pause_s

    def save(self, state: Checkpoint) -> None:
        """Write a checkpoint."""
        begun = time.monotonic()
        with self.writing(f"the checkpoint of round {state.round_number} ({CHECKPOINT})"):
            checkpoint.save(self.out / CHECKPOINT, state)
        self.saved_at = time.monotonic()
        took = (self.saved_at - begun) / WRITING_SHARE
        self.pause_s = self.checkpoint_every_s and max(self.checkpoint_every_s, took)
