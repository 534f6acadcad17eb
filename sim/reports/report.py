"""One self-contained report.html of a run: no script, no network, images inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from har_pipeline import dataset_names
from har_pipeline.combination import combination_of
from sim.experiment import DEFAULTS
from sim.reports.figures.run_figures import FIGURES, draw_run
from sim.reports.repeat import repeat_command
from sim.results import tables
from sim.results.records import NewClients, Plain, RunConfig
from sim.results.run_directory import RunDirectory
from sim.run_options import OPTIONS, Affects

LEAKS = {
    "temporal": "Within each client and class the last 20 % in time are the test set; windows that straddle the cut "
    "are dropped, so no test window overlaps a training window.",
    "random80": "Windows were drawn at random (80/20) although they overlap by half: test windows share samples with "
    "training windows. This split leaks and flatters every score; it exists to compare with the paper.",
    "kfold7_3": "Ten stratified folds without shuffling, of which the last three are the test set (70/30), as in the "
    "authors' code: within each client and class nearly the last 30 % in time. Windows overlap by half and none is "
    "dropped where the folds meet, so a test window there shares samples with a training window. This split leaks, far "
    "less than one at random; it exists to compare with that code.",
}
NORMALIZATIONS = {
    "federated": "statistics from the sums, square sums and counts of the training clients",
    "client": "each client's own training statistics",
    "none": "none: the units of the sensors",
    "pooled": "statistics of all training windows pooled",
}
CAPTIONS = {
    "learning_curves": "Scores by round. The band is one standard deviation over clients. Generalization is measured "
    "once a chosen round; drawn is that of the best round by test.",
    "train_loss": "Training loss by round: mean over the round's clients, weighted by their examples.",
    "gradient_dissimilarity": "How much the gradients of a round's clients disagree at the server's model that they "
    "are about to get: L_k is the mean loss over client k's training examples, dropout off, and "
    "∇L = Σ n_k ∇L_k / Σ n_k. At 0 all would step alike; ‖∇L‖² gives the scale.",
    "client_scores": "Every client at the best round by test, in the order of its personalization score.",
    "confusion_personalization": "Each client's model on its own test set, summed over clients; best round by test.",
    "confusion_generalization": "Each client's model on the union of test sets, summed over clients; best "
    "round by test.",
    "confusion_global": "The server's model on the union of test sets; best round by test.",
    "partition": "Examples of each client by part (above), and its training examples by class (below).",
    "images": "A few test images, the same for every run of a seed, segmented by the server's model of the last "
    "round, or where there is none by their clients' own of the best: the truth, the predicted mask, the entropy of "
    "the softmax, dark where the network is sure, and that of the normalized features, bright where many are active. "
    "Regions bear the numbers of their classes.",
    "score_over_bytes": "Scores over what all clients together have moved so far, up and down.",
    "cost": "Left: bytes that one client has moved so far. Right: time of each round by phase.",
}


def write_report(run: RunDirectory) -> Path:
    """Write DIR/report.html from the files and the plots of the run, drawing the plots if there are none."""
    folder = run.path / "plots"
    paths = [folder / f"{name}.png" for name in FIGURES]
    if not any(path.is_file() for path in paths):
        draw_run(run)
    figures = {path.stem: data_uri(path) for path in paths if path.is_file()}
    html = render(
        "report.html",
        run=run,
        figures=figures,
        captions=CAPTIONS,
        definitions=tables.DEFINITIONS,
        choices=tables.CHOICES,
        selected_names=tables.SELECTED,
        selected=tables.selected_texts(run),
        trusted=run.summary.trusted if run.summary else "last",
        cost=tables.cost_line(run.summary) if run.summary else "",
        settings=settings_tables(run),
        metrics=run.config.metrics,
        class_metric=run.config.learnt.class_metric,
        scored_unit=run.config.learnt.scored_unit,
        spread_text=tables.spread_text,
        data_settings=list(data_settings(run.config)),
        clients=list(client_rows(run)),
        classes=list(class_rows(run)),
        new_clients=list(new_user_rows(run.summary.new_clients)) if run.summary and run.summary.new_clients else [],
        command=repeat_command(run.config),
    )
    path = run.path / "report.html"
    path.write_text(html, "utf-8")
    return path


def data_settings(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (what, its name, what that means) of how examples came to clients, to parts, and to one scale."""
    if config.partition:
        options = ", ".join(f"{key} {value}" for key, value in config.partition.items() if key != "kind")
        yield "Partition", str(config.partition["kind"]), f"{options}."
    if config.dataset in dataset_names() or combination_of(config.dataset):
        yield "Split", config.data.split, LEAKS.get(config.data.split, "")
        yield "Validation", f"{config.validation_share:g}", _validation(config.validation_share)
        yield "Normalization", config.data.normalization, f"{NORMALIZATIONS.get(config.data.normalization, '')}."


def _validation(share: float) -> str:
    if not share:
        return "no training windows were set aside, so no round could be chosen by them."
    return (
        "of the training windows, the last of each client and class in time; they choose the round and are not trained "
        "on, nor is a window that overlaps one."
    )


def render(template: str, **values: Any) -> str:
    """Fill one of the package's templates; everything that is not markup of ours is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(bytes=tables.byte_size, duration=tables.duration)
    return environment.get_template(template).render(**values)


def data_uri(path: Path) -> str:
    """Return a PNG as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def client_rows(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """List one row a client, worst personalization first, those without a score last."""

    def order(name: str) -> tuple[bool, float]:
        scores = run.client_scores.get(name)
        score = ((scores and scores.personalization) or {}).get(metric)
        return score is None, sign * (score or 0.0)

    metric, kind = run.config.primary
    sign = 1 if kind.higher_is_better else -1
    nothing: Plain = dict.fromkeys(run.config.metrics)
    for name in sorted(run.clients, key=order):
        scores, examples = run.client_scores.get(name), run.clients[name]
        own, union = (scores.personalization, scores.generalization) if scores else (None, None)
        classes = sum(count > 0 for count in examples.train_per_class)
        yield {
            "name": name,
            "own": own or nothing,
            "union": union or nothing,
            "train": examples.train,
            "test": examples.test,
            "classes": classes,
        }


def class_rows(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """List one row a class: what it was tested on, and its score in each of the three confusion matrices."""
    matrices = [run.confusions.personalization, run.confusions.generalization, run.confusions.global_]
    if not any(matrices):
        return
    task = run.config.learnt
    found = [task.class_scores({"confusion": torch.tensor(matrix)}) if matrix else None for matrix in matrices]
    for index, label in enumerate(run.config.labels):
        yield {
            "name": label,
            "tested": _tested(run, index),
            "scores": [column[index] if column else None for column in found],
        }


def _tested(run: RunDirectory, index: int) -> int:
    """Count what a class was tested on: examples, or what an example has many of, by the first confusion matrix."""
    if run.config.learnt.scored_unit == "examples":
        return sum(client.test_per_class[index] for client in run.clients.values())
    confusions = run.confusions
    matrices = (confusions.personalization, confusions.global_, confusions.generalization)
    return next(sum(matrix[index]) for matrix in matrices if matrix)


def new_user_rows(new: NewClients) -> Iterator[dict[str, Any]]:
    """List each number of labelled examples, and the clients' own models where there is no server's."""
    for shots, scores in sorted(new.shots.items()):
        name = f"after {shots} labelled examples of each class, {new.epochs} epochs" if shots else "as they join"
        yield {"name": name, "scores": scores}
    if new.client_models:
        yield {"name": "the other clients' models, each new client's mean over them", "scores": new.client_models}


def settings_tables(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """Return the settings by section, as the report shows them; empty sections stay out."""
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
    return {title: values for title, values in sections.items() if values}


def _not_default(config: RunConfig, affects: Affects, panel: str) -> dict[str, Any]:
    """Return a simulation's own options of one kind that were given."""
    own = {name: option for name, option in OPTIONS.items() if (option.affects, option.panel) == (affects, panel)}
    values = {name: option.value(config) for name, option in own.items() if len(option.path) == 1}
    return {name: value for name, value in values.items() if value != DEFAULTS[name]}


def _thousands(parameters: Mapping[str, int]) -> dict[str, str]:
    names = {"trained": "trained parameters", "prototypes": "prototype values"}
    return {names.get(kind, kind): f"{count:,}" for kind, count in parameters.items()}
