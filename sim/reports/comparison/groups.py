"""Which runs stand in one table: the same test examples and family of models; and one row a configuration.

Table 1 of Ek et al. 2024 is the model: one row a method, mean ± std over clients, best and second marked.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from federation.methods import METHODS
from gaitway.errors import did_you_mean
from models.registry import family
from sim.errors import RunDirectoryError, SettingsError
from sim.reports.comparison.comparability import Runs, labels_of, refusals, settings_of, tested_on, warnings_of, written
from sim.reports.comparison.critical import ranked_over_datasets, tested
from sim.reports.comparison.overhead import mean_of_known, train_seconds
from sim.reports.comparison.records import Comparison, Group, Row
from sim.reports.comparison.scores import curves, ranks, selected
from sim.results.run_directory import RunDirectory
from sim.scores.records import Selection

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
        rows = [replace(row, ranks=mine) for row, mine in zip(rows, ranked, strict=True)]
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
