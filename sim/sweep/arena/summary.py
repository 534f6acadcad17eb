"""What is kept of a cell: one line of JSON in `docs/results/DATA.jsonl`, from which every table is rendered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from federation import wire
from gaitway.errors import first_problem
from gaitway.files import write_file
from sim.errors import RunDirectoryError
from sim.results.run_directory import RunDirectory
from sim.sweep.arena.measures import MEASURES

FOLDER = Path("docs/results")
"""Where summaries lie, from the root of a checkout."""
DIGITS = 6


class CellSummary(BaseModel):
    """One run: what it was, where it was made, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = Field(default=1, ge=1, le=1)
    arguments: tuple[str, ...]
    seed: int
    rounds: int
    metric: str = Field(description="what the scores are of")
    higher_is_better: bool
    measures: dict[str, float | None]
    clients: dict[str, float | None] = Field(description="each client's own score, of the chosen round")
    validation: float | None = Field(description="the best mean score on validation windows, by which rates are chosen")
    validation_curve: tuple[tuple[int, float], ...]
    plan_sha256: str = Field(description="of plan.json")
    data_sha256: str | None = Field(description="of all clients' windows and targets, as the run had them")
    commit: str
    date: str
    hardware: str
    device: str = Field(default="cpu", description="cpu or cuda; a GPU's seconds say nothing of a CPU's")
    versions: dict[str, str]


Summaries = Mapping[str, CellSummary]
"""By the cell's key."""


def summarize(run: RunDirectory, arguments: Sequence[str], commit: str) -> CellSummary:
    """Take from a finished run what tables need.

    Raises:
        RunDirectoryError: if the run is not finished.
    """
    if run.summary is None:
        raise RunDirectoryError(f"{run.path} is not finished; the same command resumes it")
    name, metric = run.config.primary
    curve = tuple(
        (each.round, round(each.validation[name].mean, DIGITS)) for each in run.rounds if each.validation is not None
    )
    best = max if metric.higher_is_better else min
    return CellSummary(
        arguments=tuple(arguments),
        seed=run.config.seed,
        rounds=len(run.rounds),
        metric=name,
        higher_is_better=metric.higher_is_better,
        measures={key: _rounded(measure.read(run)) for key, measure in MEASURES.items()},
        clients=_own_scores(run, name),
        validation=best((score for _, score in curve), default=None),
        validation_curve=curve,
        plan_sha256=wire.digest((run.path / "plan.json").read_bytes()),
        data_sha256=run.config.data_sha256,
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        hardware=run.config.hardware,
        device=run.config.device,
        versions=run.config.versions,
    )


def _own_scores(run: RunDirectory, metric: str) -> dict[str, float | None]:
    summary = run.summary
    if summary is None:
        return {}
    selected = {name: score.selected(summary.trusted) for name, score in run.client_scores.items()}
    own = {name: each.personalization for name, each in selected.items() if each is not None}
    return {name: _rounded(scores.get(metric)) for name, scores in own.items() if scores}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def write_summary(folder: Path, key: str, summary: CellSummary) -> None:
    """Add a cell's summary to its data set's file, or replace it there; the file is written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        path = folder / f"{data_of(key)}.jsonl"
        known = {**(_read_file(path) if path.exists() else {}), key: summary}
        write_file(path, "".join(_line(key, known[key]) for key in sorted(known)).encode())


def read_summaries(folder: Path) -> dict[str, CellSummary]:
    """Return every cell's summary by the cell's key.

    Raises:
        RunDirectoryError: if one is damaged, naming the file and the line.
    """
    found: dict[str, CellSummary] = {}
    for path in sorted(folder.glob("*.jsonl")):
        found |= _read_file(path)
    return found


def data_of(key: str) -> str:
    """Return the data set of a cell: what its key begins with."""
    return key.partition("-")[0]


def _line(key: str, summary: CellSummary) -> str:
    return json.dumps({"key": key, **summary.model_dump(mode="json")}, sort_keys=True) + "\n"


def _read_file(path: Path) -> dict[str, CellSummary]:
    found: dict[str, CellSummary] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            values = json.loads(line)
            key = str(values.pop("key"))
            found[key] = CellSummary.model_validate(values)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            problem = first_problem(error) if isinstance(error, ValidationError) else "not a summary"
            raise RunDirectoryError(
                f"{path}, line {number}, is damaged: {problem}. Restore the file from git."
            ) from error
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing summaries: each write replaces a whole file. Windows has no such lock."""
    try:
        import fcntl  # of Unix
    except ModuleNotFoundError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
