"""The tables of a run's report: chosen rounds, all rounds, clients, classes, new users, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sim.data.holdout import OTHERWISE
from sim.experiment.options import Affects
from sim.experiment.settings import DEFAULTS, OPTIONS
from sim.reports.table import ReportTable, table_of
from sim.results.run_directory import RunDirectory
from sim.results.tables import DEFINITIONS, SELECTED, byte_size, duration, selected_texts, spread_texts
from sim.scores.records import Plain, RunConfig


def _heads(config: RunConfig, *scores: str) -> Iterator[str]:
    """Yield of each score the heads of its metrics, the first of which names it."""
    first, *others = config.metrics.values()
    for score in scores:
        yield f"{score} {first.short}{first.unit}"
        yield from (metric.label + metric.unit for metric in others)


def _texts(config: RunConfig, scores: Plain | None) -> list[str]:
    return [metric.text(scores[name] if scores else None) for name, metric in config.metrics.items()]


def selected_table(run: RunDirectory) -> ReportTable:
    """Return every score of the rounds that were chosen."""
    names = [name + " 10 %" * (name == "worst") for name in DEFINITIONS]
    rows = [
        (SELECTED[selection], number, *(text for name in DEFINITIONS for text in texts[name]))
        for selection, (number, texts) in selected_texts(run).items()
    ]
    return table_of(["round chosen", "round", *_heads(run.config, *names)], rows)


def rounds_table(run: RunDirectory) -> ReportTable:
    """List what every round gave and cost."""
    scores = _heads(run.config, "personalization", "global")
    rows = [
        (
            record.round,
            len(record.cohort),
            "–" if record.train_loss is None else f"{record.train_loss:.4f}",
            *spread_texts(record.personalization, run.config.metrics),
            *_texts(run.config, record.global_),
            byte_size(record.bytes_up),
            byte_size(record.bytes_down),
            duration(sum(record.seconds.values())),
        )
        for record in run.rounds
    ]
    return table_of(["round", "clients", "training loss", *scores, "up", "down", "time"], rows)


def clients_table(run: RunDirectory) -> ReportTable:
    """List one row a client, worst personalization first, those without a score last."""

    def order(name: str) -> tuple[bool, float]:
        scores = run.client_scores.get(name)
        score = scores and scores.mean("personalization", metric)
        return score is None, sign * (score or 0.0)

    metric, kind = run.config.primary
    sign = 1 if kind.higher_is_better else -1
    rows = []
    for name in sorted(run.clients, key=order):
        scores, examples = run.client_scores.get(name), run.clients[name]
        served = (scores.personalization, scores.generalization) if scores else (None, None)
        classes = sum(count > 0 for count in examples.train_per_class)
        texts = [text for part in served for text in _texts(run.config, part)]
        rows.append((name, examples.train, examples.test, classes, *texts))
    head = ["client", "training examples", "test examples", "classes trained"]
    return table_of([*head, *_heads(run.config, "personalization", "generalization")], rows)


def classes_table(run: RunDirectory) -> ReportTable | None:
    """List one row a class: what it was tested on, and its score in each of the three confusion matrices."""
    matrices = (run.confusions.personalization, run.confusions.generalization, run.confusions.global_)
    task = run.config.learnt
    metric = task.class_metric
    if metric is None or not any(matrices):
        return None
    found = [task.class_scores({"confusion": torch.tensor(matrix)}) if matrix else None for matrix in matrices]
    rows = [
        (label, _tested(run, index), *(metric.text(column[index] if column else None) for column in found))
        for index, label in enumerate(run.config.labels)
    ]
    scores = [f"{name} {metric.label}{metric.unit}" for name in ("personalization", "generalization", "global")]
    return table_of(["class", f"test {task.scored_unit}", *scores], rows)


def _tested(run: RunDirectory, index: int) -> int:
    """Count what a class was tested on: examples, or what an example has many of, by the first confusion matrix."""
    if run.config.learnt.scored_unit == "examples":
        return sum(client.test_per_class[index] for client in run.clients.values())
    confusions = run.confusions
    matrices = (confusions.personalization, confusions.global_, confusions.generalization)
    return next(sum(matrix[index]) for matrix in matrices if matrix)


def new_clients_table(run: RunDirectory) -> ReportTable | None:
    """List a row for each number of labelled examples, and one for clients' own models where no server's is."""
    new, metrics = run.summary and run.summary.new_clients, run.config.metrics
    if not new:
        return None
    named = [(_learnt_from(shots, new.epochs), scores) for shots, scores in sorted(new.shots.items())]
    if new.unlabelled:
        named.insert(1, ("adapted to windows without labels", new.unlabelled))
    for way, scores in new.own_windows.items():
        where = f"phones {OTHERWISE.get(way, 'as recorded')}, with windows of their own without labels"
        named.append((f"{where} ({100 * new.adapted.get(way, 0):.0f} % adapt)", scores))
    for way, by_shots in new.turned.items():
        for shots, scores in sorted(by_shots.items()):
            named.append((f"phones {OTHERWISE.get(way, way)}, {_learnt_from(shots, new.epochs)}", scores))
    for way, by_heads in new.heads.items():
        for shots, heads in sorted(by_heads.items()):
            where = f"phones {OTHERWISE.get(way, 'as recorded')}, {_learnt_from(shots, new.epochs)}: the head "
            named += [(where + name.replace("_", " "), scores) for name, scores in heads.items()]
    if new.client_models:
        named.append(("the other clients' models, each new client's mean over them", new.client_models))
    head = ["model", *(metric.label + metric.unit for metric in metrics.values())]
    return table_of(head, [(name, *spread_texts(scores, metrics)) for name, scores in named])


def _learnt_from(shots: int, epochs: int) -> str:
    return f"after the first {shots} examples of each class, {epochs} epochs" if shots else "as they join"


def settings_tables(run: RunDirectory) -> dict[str, ReportTable]:
    """Return the settings by section; empty sections stay out."""
    config = run.config
    everyone = {"clients_per_round": "all", "deadline_s": "none"}
    sections = {
        "Task": config.task,
        "Method": config.method,
        "Training": {**config.training.model_dump(), **_not_default(config, "training", "Training")},
        "Rounds": {key: everyone.get(key) if value is None else value for key, value in config.rounds},
        "Model": {"name": config.model_name, **config.model.options, **_thousands(config.parameters)},
        "Data": {
            "name": config.dataset,
            "classes": ", ".join(config.labels),
            **config.dataset_options,
            **config.data.pipeline,
        },
        "Engine": {"engine": config.engine, **_not_default(config, "environment", "Running")},
        "Environment": {**config.versions, "hardware": config.hardware},
    }
    return {title: table_of((), values.items()) for title, values in sections.items() if values}


def _not_default(config: RunConfig, affects: Affects, panel: str) -> dict[str, Any]:
    """Return a simulation's own options of one kind that were given."""
    own = {name: option for name, option in OPTIONS.items() if (option.affects, option.panel) == (affects, panel)}
    values = {name: option.value(config) for name, option in own.items() if len(option.path) == 1}
    return {name: value for name, value in values.items() if value != DEFAULTS[name]}


def _thousands(parameters: Mapping[str, int]) -> dict[str, str]:
    names = {"trained": "trained parameters", "prototypes": "prototype values"}
    return {names.get(kind, kind): f"{count:,}" for kind, count in parameters.items()}
