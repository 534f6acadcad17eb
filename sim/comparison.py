"""What several runs say side by side: rows, ranks, and why they may not be comparable.

Table 1 of Ek et al. 2024 is the model: one row a method, mean ± std over clients, best and second marked.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.comparability import Runs, labels_of, refusals, settings_of, warnings_of
from sim.run_directory import MeanStd, Plain, RunDirectory, Spread, Summary

SCORES = ("personalization", "generalization", "global")
MEASURES = ("macro_f1", "accuracy")
COLUMNS = tuple(f"{score}.{measure}" for measure in MEASURES for score in SCORES)


@dataclass(frozen=True)
class Score:
    """A score between 0 and 1; `clients_std` is the mean over seeds of the std over clients."""

    mean: float
    clients_std: float | None = None
    seeds_std: float | None = None


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of a macro-F1, by round."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One configuration, over its seeds; bytes are per client and round, seconds per run."""

    label: str
    method: str
    model: str
    seeds: tuple[int, ...]
    directories: tuple[str, ...]
    clients: int
    rounds: int
    best_rounds: tuple[int, ...]
    scores: Mapping[str, Score | None]
    ranks: Mapping[str, int]
    bytes_up: float
    bytes_down: float
    seconds: float
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Group:
    """The runs on one data set with one family of models; unranked where `refused` gives a reason."""

    data: str
    model: str
    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All groups; `warnings` name the runs that were left out."""

    groups: tuple[Group, ...]
    warnings: tuple[str, ...] = ()
    schema: int = field(default=1, init=False)


def compare_runs(runs: Runs) -> Comparison:
    """Group by data and model, put the seeds of a configuration into one row, and rank the rows."""
    warnings: list[str] = []
    kept: dict[tuple[Any, ...], RunDirectory] = {}
    for run in runs:
        key = (repr(sorted(settings_of(run).items())), run.config.seed)
        if run.summary is None:
            done = len(run.rounds)
            warnings.append(f"{run.path} is left out: {done} of {run.config.planned_rounds} rounds are done")
        elif key in kept:
            warnings.append(f"{run.path} is left out: same settings and seed as {kept[key].path}")
        else:
            kept[key] = run
    grouped: dict[tuple[str, str], list[RunDirectory]] = defaultdict(list)
    for run in kept.values():
        # ALP is FedALI's own layer: `hart_alp` is what its papers' tables put beside `hart`.
        grouped[run.config.data, run.config.model.removesuffix("_alp")].append(run)
    return Comparison(
        tuple(_group(data, model, members) for (data, model), members in grouped.items()), tuple(warnings)
    )


def _group(data: str, model: str, runs: Runs) -> Group:
    by_settings: dict[str, list[RunDirectory]] = defaultdict(list)
    for run in runs:
        by_settings[repr(sorted(settings_of(run).items()))].append(run)
    members = [sorted(same, key=lambda run: run.config.seed) for same in by_settings.values()]
    labels = labels_of([same[0] for same in members])
    refused = refusals(labels, members)
    scores = [_scores(same) for same in members]
    ranks = [dict.fromkeys(COLUMNS, 0) for _ in members] if refused else _ranks(scores)
    rows = tuple(map(_row, labels, members, scores, ranks))
    return Group(data, model, rows, refused, warnings_of(labels, members))


def _row(label: str, runs: Runs, scores: Mapping[str, Score | None], ranks: Mapping[str, int]) -> Row:
    config, summaries = runs[0].config, [_summary(run) for run in runs]
    return Row(
        label=label,
        method=config.method_name,
        model=config.model,
        seeds=tuple(run.config.seed for run in runs),
        directories=tuple(str(run.path) for run in runs),
        clients=summaries[0].clients,
        rounds=summaries[0].rounds,
        best_rounds=tuple(summary.best_round for summary in summaries),
        scores=scores,
        ranks=ranks,
        bytes_up=statistics.fmean(summary.bytes_up for summary in summaries),
        bytes_down=statistics.fmean(summary.bytes_down for summary in summaries),
        seconds=statistics.fmean(summary.seconds["total"] for summary in summaries),
        curves={score: curve for score in SCORES if (curve := _curve(runs, score)).rounds},
    )


def _summary(run: RunDirectory) -> Summary:
    if run.summary is None:
        raise ValueError(f"{run.path} is not finished; only finished runs become rows")
    return run.summary


# ---- scores


def _part(record: Any, score: str) -> Spread | Plain | None:
    part: Spread | Plain | None = getattr(record, "global_" if score == "global" else score)
    return part


def _scores(runs: Runs) -> dict[str, Score | None]:
    return {column: _score([_summary(run) for run in runs], *column.split(".")) for column in COLUMNS}


def _score(summaries: Sequence[Summary], score: str, measure: str) -> Score | None:
    values = [getattr(part, measure) for summary in summaries if (part := _part(summary, score))]
    if not values or None in values:
        return None
    means = [value.mean if isinstance(value, MeanStd) else value for value in values]
    stds = [value.std for value in values if isinstance(value, MeanStd)]
    return Score(
        mean=statistics.fmean(means),
        clients_std=statistics.fmean(stds) if stds else None,
        seeds_std=statistics.stdev(means) if len(means) > 1 else None,
    )


def _ranks(scores: Sequence[Mapping[str, Score | None]]) -> list[dict[str, int]]:
    """1 for the best, 2 for the second, else 0; scores that print the same share a rank."""
    ranks = [dict.fromkeys(COLUMNS, 0) for _ in scores]
    for column in COLUMNS:
        printed = [round(100 * score.mean, 2) if (score := row[column]) else None for row in scores]
        places = sorted({value for value in printed if value is not None and not math.isnan(value)}, reverse=True)
        for rank, value in enumerate(places[:2] if len(places) > 1 else [], 1):
            for row, came in zip(ranks, printed, strict=True):
                row[column] = rank if came == value else row[column]
    return ranks


def _curve(runs: Runs, score: str) -> Curve:
    by_round: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for record in run.rounds:
            value = part.macro_f1 if (part := _part(record, score)) else None
            if value is not None:
                by_round[record.round].append(value.mean if isinstance(value, MeanStd) else value)
    full = {number: statistics.fmean(values) for number, values in by_round.items() if len(values) == len(runs)}
    return Curve(tuple(full), tuple(full.values()))
