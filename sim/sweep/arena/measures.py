"""What a table shows of a run: a name, a heading, and how it is read from the run's directory.

Scores are those of the round that the validation windows chose, in the task's primary metric, or in accuracy where a
measure says so, as most papers report; nothing is chosen by a test set.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from federation import wire
from federation.methods import METHODS
from gaitway.errors import first_problem
from gaitway.files import write_file
from sim.data.selection import OTHERWISE, OTHERWISE_SHOTS, SHOTS
from sim.errors import RunDirectoryError
from sim.results.run_directory import RunDirectory
from sim.scores.records import SelectedRound, Spread

LAST_ROUNDS = 10
"""Of these Qiao et al. 2023 report the mean."""
NEAR = 0.005
"""A run has converged, as far as tables say, in the first evaluated round with so little below its best accuracy."""


class Measure(NamedTuple):
    """A column."""

    heading: str
    is_score: bool
    """In percent where its metric is a share; else a cost, of which less is better."""
    read: Callable[[RunDirectory], float | None]
    metric: str = ""
    """Of a score; empty: the task's primary one."""


def chosen(run: RunDirectory) -> SelectedRound:
    """Return the scores of the round that claims may rest on."""
    found = run.final.selected(run.final.trusted)
    return found if found is not None else run.final.last


def _score(name: str, metric: str = "") -> Callable[[RunDirectory], float | None]:
    return lambda run: chosen(run).mean(name, metric or run.config.primary[0])


def _mean(run: RunDirectory, scores: Spread | None) -> float | None:
    return scores[run.config.primary[0]].mean if scores else None


def _new(shots: int) -> Callable[[RunDirectory], float | None]:
    def read(run: RunDirectory) -> float | None:
        new = run.final.new_clients
        return _mean(run, new.shots.get(shots)) if new else None

    return read


def _new_together(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return new.together.get(0, {}).get(run.config.primary[0]) if new else None


def _otherwise(way: str, shots: int) -> Callable[[RunDirectory], float | None]:
    def read(run: RunDirectory) -> float | None:
        new = run.final.new_clients
        return _mean(run, new.turned.get(way, {}).get(shots)) if new else None

    return read


def _new_unlabelled(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return _mean(run, new.unlabelled) if new else None


def _new_own_windows(run: RunDirectory) -> float | None:
    new = run.final.new_clients
    return _mean(run, new.own_windows.get("as_recorded")) if new else None


def _worst_tenth(run: RunDirectory) -> float | None:
    return run.worst_tenth(run.config.primary[0], run.final.trusted)


def _last_ten(run: RunDirectory) -> float | None:
    """Return the mean accuracy of the server's model over the last ten rounds; None unless each was evaluated."""
    last = run.rounds[-LAST_ROUNDS:]
    scores = [score for record in last if (score := record.mean("global", "accuracy")) is not None]
    return statistics.fmean(scores) if len(scores) == LAST_ROUNDS else None


def _convergence(run: RunDirectory) -> float | None:
    """Return the first evaluated round whose mean accuracy over clients is near the best of the run."""
    own = [(record.round, record.mean("personalization", "accuracy")) for record in run.rounds]
    scores = [(number, score) for number, score in own if score is not None]
    best = max((score for _, score in scores), default=None)
    return None if best is None else float(next(number for number, score in scores if score >= best - NEAR))


def _prototype_distance(run: RunDirectory) -> float | None:
    found = run.rounds[-1].diagnostics.get("prototype_distance")
    return None if found is None else float(found)


def _numbers_k(run: RunDirectory) -> float | None:
    """Return the thousands of numbers that all clients sent in a round."""
    if METHODS[run.config.method_name].traits.pools_data:
        return None
    sent = [row.numbers_up * (len(row.cohort) - len(row.lost)) for row in run.rounds if row.numbers_up is not None]
    return statistics.fmean(sent) / 1e3 if sent else None


def _upload_mb(run: RunDirectory) -> float | None:
    """Return what clients sent; nothing that compares with it where their data were pooled."""
    if METHODS[run.config.method_name].traits.pools_data:
        return None
    return run.final.bytes_up * len(run.rounds) / 1e6


def _windows(count: int) -> str:
    return f"{count} window{'s' * (count != 1)}"


MEASURES: Mapping[str, Measure] = {
    "own": Measure("own later windows", True, _score("personalization")),
    "others": Measure("others' windows", True, _score("generalization")),
    "server": Measure("server's model", True, _score("global")),
    "own_accuracy": Measure("own later windows, accuracy", True, _score("personalization", "accuracy"), "accuracy"),
    "server_accuracy": Measure("server's model, accuracy", True, _score("global", "accuracy"), "accuracy"),
    "server_accuracy_last_ten": Measure(
        "server's model, accuracy, mean of the last ten rounds", True, _last_ten, "accuracy"
    ),
    "worst_tenth": Measure("worst tenth", True, _worst_tenth),
    "new": Measure("new users", True, _new(0)),
    **{f"new_{k}": Measure(f"new, {_windows(k)}", True, _new(k)) for k in SHOTS if k},
    **{
        f"new_{way}" + f"_{k}" * bool(k): Measure(
            f"new, {words}" + f", {_windows(k)}" * bool(k), True, _otherwise(way, k)
        )
        for way, words in OTHERWISE.items()
        for k in OTHERWISE_SHOTS
    },
    "new_together": Measure("new users' windows together", True, _new_together),
    "new_unlabelled": Measure("new, no labels", True, _new_unlabelled),
    "new_own_windows": Measure("new, own windows without labels", True, _new_own_windows),
    "convergence_round": Measure("first round within half a point of the best", False, _convergence),
    "prototype_distance": Measure("distance between prototypes", False, _prototype_distance),
    "numbers_k": Measure("1,000 numbers up a round", False, _numbers_k),
    "upload_mb": Measure("MB up", False, _upload_mb),
    "seconds": Measure("seconds", False, lambda run: run.final.seconds["total"]),
}
MEASURES_OF_NEW = tuple(f"new_{k}" if k else "new" for k in SHOTS)
"""Of clients that took no part: as they join, and with so many labelled windows of each class."""


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
        (row.round, round(row.validation[name].mean, DIGITS)) for row in run.rounds if row.validation is not None
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
    own = {name: chosen.personalization for name, chosen in selected.items() if chosen is not None}
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
