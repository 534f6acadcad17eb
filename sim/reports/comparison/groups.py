"""Which runs stand in one table, one row a configuration, and how each row compares with the baseline.

Runs in one table have the same test examples and family of models.
Table 1 of Ek et al. 2024 is the model: one row a method, mean ± std over clients, best and second marked.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from federation.methods import METHODS
from gaitway.errors import did_you_mean
from gaitway.tasks import Metric
from models.registry import family
from sim.errors import RunDirectoryError, SettingsError
from sim.reports.comparison.records import (
    NEW_CLIENTS,
    PAIRED,
    ROUND_SCORES,
    ComparedScore,
    Comparison,
    Curve,
    Group,
    OverDatasets,
    Row,
    Runs,
    SelectionScores,
    columns_of,
    labels_of,
    refusals,
    settings_of,
    tested_on,
    training_differences,
    warnings_of,
    written,
)
from sim.reports.comparison.tables import mean_of_known, train_seconds
from sim.results.run_directory import RunDirectory
from sim.results.statistics import PairedTest, holm, paired_test, rank_over_datasets
from sim.scores.records import SELECTIONS, MeanStd, Selection

DEFAULT_BASELINE = "fedavg"
RANKED = ("personalization", "generalization", "global")


def tested(
    rows: Sequence[Row], members: Sequence[Runs], requested: str | None, selection: Selection
) -> tuple[list[Row], list[str]]:
    """Give each row its tests against the baseline, adjusted over the rows; also return what stands in the way.

    Holm's correction is of the t test's p: with fewer than six seeds the permutation's cannot be small.
    """
    chosen, notes = _baselines(rows, members, requested or DEFAULT_BASELINE)
    if not (chosen or notes) and requested:
        notes = [f"no row is {requested!r}, so none is tested; the rows are {', '.join(row.label for row in rows)}"]
    by_row: dict[int, dict[str, PairedTest]] = defaultdict(dict)
    for column in columns_of(members[0][0].config.metrics, PAIRED):
        found = dict(_tests(chosen, members, column, selection))
        known = {index: test.p for index, test in found.items() if test.p is not None}
        adjusted = dict(zip(known, holm(list(known.values())), strict=True))
        for index, test in found.items():
            by_row[index][column] = replace(test, p_holm=adjusted.get(index))
    done = [
        replace(row, baseline=rows[chosen[index]].label, tests=by_row[index]) if index in chosen else row
        for index, row in enumerate(rows)
    ]
    return done, [*notes, *_too_few_seeds(done)]


def _too_few_seeds(rows: Sequence[Row]) -> list[str]:
    alone = [row.label for row in rows if any(test.p is None for test in row.tests.values())]
    if not alone:
        return []
    return [
        f"{', '.join(alone)}: one seed in common with the baseline. All clients of a run descend from one server's "
        "model, so a single seed is no evidence about a method; run at least two, better five"
    ]


def _tests(
    chosen: Mapping[int, int], members: Sequence[Runs], column: str, selection: Selection
) -> Iterator[tuple[int, PairedTest]]:
    score, measure = column.split(".")
    for index, baseline in chosen.items():
        ours, theirs = (client_scores(members[which], score, measure, selection) for which in (index, baseline))
        if test := paired_test(ours, theirs):
            higher = members[index][0].config.metrics[measure].higher_is_better
            yield index, test if higher else replace(test, spread=test.spread.turned())


def _baselines(rows: Sequence[Row], members: Sequence[Runs], name: str) -> tuple[dict[int, int], list[str]]:
    """Choose for each row the baseline's row of the nearest network and training, so that methods alone differ."""
    named = [index for index, row in enumerate(rows) if row.label == name]
    candidates = named or [index for index, row in enumerate(rows) if row.method == name]
    chosen, notes = {}, []
    for index in range(len(rows)):
        if index in candidates or not candidates:
            continue
        distances = {
            which: (rows[index].model != rows[which].model)
            + len(training_differences(members[index][0], members[which][0]))
            for which in candidates
        }
        nearest = [which for which, distance in distances.items() if distance == min(distances.values())]
        if len(nearest) == 1:
            chosen[index] = nearest[0]
        else:
            alike = ", ".join(rows[which].label for which in nearest)
            notes.append(f"{rows[index].label} is not tested: {alike} are equally near; name one by --baseline")
    return chosen, notes


# ---- over data sets


def ranked_over_datasets(groups: Sequence[Group]) -> tuple[OverDatasets, ...]:
    """Rank the methods of each family of models over its data sets, where there are three of both."""
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if not group.refused:
            families[group.task, group.model].append(group)
    found = (_ranked(members, score) for members in families.values() for score in RANKED)
    return tuple(ranked for ranked in found if ranked)


def _ranked(groups: Sequence[Group], score: str) -> OverDatasets | None:
    """Rank by one score; data sets with several groups are left out: they are not independent of themselves."""
    task, model, column = groups[0].task, groups[0].model, f"{score}.{groups[0].primary}"
    often = Counter(group.data for group in groups)
    tables = {group.data: _means(group, column) for group in groups if often[group.data] == 1}
    common = [name for name in next(iter(tables.values()), {}) if all(name in table for table in tables.values())]
    ranking = rank_over_datasets({name: [table[name] for table in tables.values()] for name in common})
    return OverDatasets(task, model, column, tuple(tables), ranking) if ranking else None


def _means(group: Group, column: str) -> dict[str, float]:
    """Scores, more is better, of the methods that have one row, so that it is clear which one is meant."""
    sign = 1 if group.metric_of(column).higher_is_better else -1
    often = Counter(row.method for row in group.rows)
    rows = [row for row in group.rows if often[row.method] == 1 and not row.reference]
    return {row.method: sign * score.mean for row in rows if (score := row.scores[column])}


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


Key = tuple[str, str, str]
"""Data, family of models, and the settings that say what was tested on."""


def compare_runs(runs: Runs, baseline: str | None = None, select: Selection | None = None) -> Comparison:
    """Group what was tested on the same examples, put the seeds of a configuration into one row, rank and test.

    By the scores of the round that `select` says: by default chosen by validation where all runs have that, else last.

    Raises:
        RunDirectoryError: if the rounds are to be chosen by validation, and a run has no validation examples.
        SettingsError: if no row has the baseline's name.
    """
    kept, warnings = _told_apart(runs)
    selection = _selection(kept, select)
    grouped: dict[Key, list[RunDirectory]] = defaultdict(list)
    for run in kept:
        # ALP is FedAli's own layer: `hart_alp` is what its papers' tables put beside `hart`.
        networks = "+".join(family(spec.name) for spec in run.config.models)
        grouped[run.config.dataset, networks, repr(tested_on(run))].append(run)
    apart = _apart(grouped)
    groups = tuple(
        _group(key[0], key[1], written(tested_on(members[0]), apart[key]), members, baseline, selection)
        for key, members in grouped.items()
    )
    if baseline is not None:
        _check_baseline(baseline, groups)
    notes = {_kept_apart(key, names) for key, names in apart.items() if names}
    return Comparison(groups, selection, ranked_over_datasets(groups), (*warnings, *sorted(notes)))


def _check_baseline(name: str, groups: Sequence[Group]) -> None:
    """Refuse a baseline that no row has as its label or method."""
    rows = [row for group in groups for row in group.rows]
    known = sorted({row.label for row in rows} | {row.method for row in rows})
    if groups and name not in known:
        raise SettingsError(
            f"--baseline {name!r} is neither a method nor a row of these runs; {did_you_mean(name, known)}"
        )


def _selection(runs: Runs, requested: Selection | None) -> Selection:
    without = [run.path for run in runs if run.final.validation is None]
    if requested == "validation" and without:
        raise RunDirectoryError(
            f"{without[0]} has no validation scores ({len(without)} of {len(runs)} runs have none); run it with "
            "--validation-share 0.1, or compare by --select last or --select best"
        )
    return requested or ("last" if without else "validation")


def _told_apart(runs: Runs) -> tuple[list[RunDirectory], list[str]]:
    """Leave out what is not finished or there twice, and say so."""
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
    return list(kept.values()), warnings


def _apart(grouped: dict[Key, list[RunDirectory]]) -> dict[Key, list[str]]:
    """Name the settings in which a group differs from the others of its data and family."""
    found = {}
    for key in grouped:
        siblings = [tested_on(members[0]) for other, members in grouped.items() if other[:2] == key[:2]]
        names = sorted({name for settings in siblings for name in settings})
        found[key] = [name for name in names if len({repr(settings.get(name)) for settings in siblings}) > 1]
    return found


def _kept_apart(key: Key, names: Sequence[str]) -> str:
    return (
        f"{key[0]} · {key[1]} has several tables: runs that differ in {', '.join(names)} were tested "
        "on other examples, so they are not comparable"
    )


def _group(data: str, model: str, where: str, runs: Runs, baseline: str | None, selection: Selection) -> Group:
    by_settings: dict[str, list[RunDirectory]] = defaultdict(list)
    for run in runs:
        by_settings[repr(sorted(settings_of(run).items()))].append(run)
    members = [sorted(same, key=lambda run: run.config.seed) for same in by_settings.values()]
    labels, task = labels_of([same[0] for same in members]), runs[0].config.learnt
    refused = refusals(members)
    rows = [_row(label, same, selection) for label, same in zip(labels, members, strict=True)]
    notes: list[str] = []
    if not refused:
        ranked = ranks([row.scores for row in rows], [not row.reference for row in rows], task.metric_kinds)
        rows = [replace(row, ranks=row_ranks) for row, row_ranks in zip(rows, ranked, strict=True)]
        rows, notes = tested(rows, members, baseline, selection)
    return Group(task.name, data, model, where, tuple(rows), refused, (*warnings_of(labels, members), *notes))


def _row(label: str, runs: Runs, selection: Selection) -> Row:
    config, summaries, chosen = runs[0].config, [run.final for run in runs], selected(runs)
    scores = chosen[selection].scores
    return Row(
        label=label,
        method=config.method_name,
        model=config.model_name,
        reference=config.method_name in METHODS and METHODS[config.method_name].traits.pools_data,
        seeds=tuple(run.config.seed for run in runs),
        directories=tuple(str(run.path) for run in runs),
        clients=summaries[0].clients,
        rounds=summaries[0].rounds,
        chosen_rounds=chosen[selection].rounds,
        scores=scores,
        ranks=dict.fromkeys(scores, 0),
        bytes_up=statistics.fmean(summary.bytes_up for summary in summaries),
        bytes_down=statistics.fmean(summary.bytes_down for summary in summaries),
        seconds=statistics.fmean(summary.seconds["total"] for summary in summaries),
        train_seconds=mean_of_known(map(train_seconds, runs)),
        client_bytes=mean_of_known(summary.client_bytes for summary in summaries),
        curves=curves(runs),
        selected=chosen,
    )
