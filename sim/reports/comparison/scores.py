"""From the runs of one configuration, a seed each, to what its row says."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from gaitway.tasks import Metric
from sim.reports.comparison.comparability import Runs
from sim.reports.comparison.records import NEW_CLIENTS, ROUND_SCORES, ComparedScore, Curve, SelectionScores, columns_of
from sim.results.run_directory import RunDirectory
from sim.scores.records import SELECTIONS, MeanStd, Selection


def client_scores(runs: Runs, score: str, measure: str, selection: Selection) -> dict[tuple[int, str], float]:
    """Return one score of every client that has it in the chosen round, by seed and client."""
    name = "global" if score.startswith("global") else score
    values = {
        (run.config.seed, client): chosen.mean(name, measure)
        for run in runs
        for client, scores in run.client_scores.items()
        if (chosen := scores.selected(selection)) is not None
    }
    return {key: value for key, value in values.items() if value is not None}


# ---- the row's numbers


def selected(runs: Runs) -> dict[Selection, SelectionScores]:
    """Return every way of choosing a round that all of the runs have, with the rounds and their scores."""
    found: dict[Selection, SelectionScores] = {}
    for selection in SELECTIONS:
        rounds = tuple(chosen.round for run in runs if (chosen := run.final.selected(selection)))
        if len(rounds) == len(runs):
            found[selection] = SelectionScores(rounds, row_scores(runs, selection))
    return found


def row_scores(runs: Runs, selection: Selection) -> dict[str, ComparedScore | None]:
    """Return every column's score in the chosen round, None where the method or a run has none."""
    shots = sorted({k for run in runs if (new := run.final.new_clients) for k in new.shots})
    config = runs[0].config
    columns = (*columns_of(config.metrics), *(f"{NEW_CLIENTS}{k}.{config.primary[0]}" for k in shots))
    split = {column: column.split(".") for column in columns}
    return {column: _score(runs, score, measure, selection) for column, (score, measure) in split.items()}


def _score(runs: Runs, score: str, measure: str, selection: Selection) -> ComparedScore | None:
    values = [_value(run, score, measure, selection) for run in runs]
    means = [value.mean if isinstance(value, MeanStd) else value for value in values]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(runs):
        return None
    stds = [value.std for value in values if isinstance(value, MeanStd)]
    return ComparedScore(
        mean=statistics.fmean(known),
        clients_std=statistics.fmean(stds) if stds else None,
        seeds_std=statistics.stdev(known) if len(known) > 1 else None,
    )


def _value(run: RunDirectory, score: str, measure: str, selection: Selection) -> MeanStd | float | None:
    if score == "worst":
        return run.worst_tenth(measure, selection)
    if score.startswith(NEW_CLIENTS):
        new = run.final.new_clients
        part = new and new.shots.get(int(score.removeprefix(NEW_CLIENTS)))
        return part[measure] if part else None
    chosen = run.final.selected(selection)
    value: MeanStd | float | None = ((chosen and chosen.score(score)) or {}).get(measure)
    return value


def ranks(
    scores: Sequence[Mapping[str, ComparedScore | None]], ranked: Sequence[bool], metrics: Mapping[str, Metric]
) -> list[dict[str, int]]:
    """Return 1 for the best, 2 for the second, else 0; scores that print the same share a rank."""
    found = [dict.fromkeys(row, 0) for row in scores]
    for column in {column: None for row in scores for column in row}:
        metric = metrics[column.split(".")[1]]
        printed = [
            float(metric.text(score.mean)) if takes_part and (score := row.get(column)) else None
            for row, takes_part in zip(scores, ranked, strict=True)
        ]
        places = sorted({value for value in printed if value is not None}, reverse=metric.higher_is_better)
        for rank, value in enumerate(places[:2] if len(places) > 1 else [], 1):
            for row_ranks, values in zip(found, printed, strict=True):
                if values == value:
                    row_ranks[column] = rank
    return found


# ---- curves


def curves(runs: Runs) -> dict[str, Curve]:
    """Return the primary metric by round of the scores that were followed, over the rounds that all seeds evaluated."""
    found = {score: _curve(runs, score) for score in ROUND_SCORES}
    return {score: curve for score, curve in found.items() if curve.rounds}


def _curve(runs: Runs, score: str) -> Curve:
    by_round: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for record, moved in zip(run.rounds, accumulate(r.moved_bytes for r in run.rounds), strict=True):
            if (value := record.mean(score, run.config.primary[0])) is not None:
                by_round[record.round].append((moved, value))
    full = {number: tuple(zip(*points, strict=True)) for number, points in by_round.items() if len(points) == len(runs)}
    means = [(number, *map(statistics.fmean, points)) for number, points in full.items()]
    return Curve(*zip(*means, strict=True)) if means else Curve((), (), ())
