"""Every row against a baseline, seed by seed, and methods over data sets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sim.reports.comparison.comparability import Runs, training_differences
from sim.reports.comparison.records import PAIRED, Group, OverDatasets, Row, columns_of
from sim.reports.comparison.scores import client_scores
from sim.results.statistics import PairedTest, holm, paired_test, rank_over_datasets
from sim.scores.records import Selection

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
