"""Typed reading of what `python -m sim run` wrote, finished or not; the only reader of these files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gaitway.errors import first_problem
from sim.errors import RunDirectoryError
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
