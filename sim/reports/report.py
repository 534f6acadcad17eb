"""One self-contained report.html of a run, with its tables and the command that repeats it: no script, no network."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from federation.plan import DataSpec, RoundSettings, SecureSettings, TrainingConfig
from har_pipeline import dataset_names
from har_pipeline.combination import combination_of
from sim.data.selection import OTHERWISE
from sim.experiment.options import PLAN_OPTIONS, Affects, option_words
from sim.experiment.settings import DEFAULTS, OPTIONS, Experiment
from sim.reports.table import ReportTable, table_of
from sim.results import summary
from sim.results.run_directory import RunDirectory
from sim.results.summary import DEFINITIONS, SELECTED, byte_size, duration, selected_texts, spread_texts
from sim.scores.records import Plain, RunConfig

ALWAYS = frozenset({"data", "method", "model", "rounds", "epochs", "batch", "lr", "optimizer", "seed"})
"""Options that are written even where they are the defaults: readers look for them, or a method has its own."""


def repeat_command(experiment: Experiment) -> str:
    """Return the command line that repeats a run; the folder of the data and DIR are the reader's."""
    words = ["python", "-m", "sim", "run"]
    words += [] if experiment.dataset == "synthetic" else ["--data-root", "FOLDER"]
    for name in OPTIONS:
        value = given(experiment, name)
        if name in ALWAYS or value != DEFAULTS[name]:
            words += option_words(name, value)
    for assignment in _assignments(experiment):
        words += ["--set", assignment]
    return shlex.join([*words, "--out", "DIR"])


def given(experiment: Experiment, name: str) -> Any:
    """Return what an experiment has for an option, as the option is given."""
    value = OPTIONS[name].value(experiment)
    match name:
        case "model":
            return "+".join(spec.name for spec in experiment.models)
        case "partition":
            return value and value["kind"]
        case "holdout":
            return value and f"{value.kind}:{value.out if isinstance(value.out, int) else ','.join(value.out)}"
        case "init":
            return value and str(value.path)
    return value


def _assignments(experiment: Experiment) -> Iterator[str]:
    """Yield what `--set` takes: every hyper-parameter, and of the plan's sections what is not the default."""
    of_options = {
        section: {o.path[1] for o in PLAN_OPTIONS.values() if o.path[0] == section}
        for section in ("data", "rounds", "secure", "training")
    }
    plain = experiment.model_dump(mode="json")
    sections = {
        "task": _without(plain["task"], "name"),
        "method": _without(plain["method"], "name"),
        **_model_options(experiment),
        "data": plain["dataset_options"] | _changed(plain["data"], DataSpec(), "pipeline", *of_options["data"]),
        "pipeline": plain["data"]["pipeline"],
        "partition": _without(plain["partition"] or {}, "kind"),
        "holdout": _without(plain["holdout"] or {}, "kind", "out"),
        "training": _changed(
            plain["training"], TrainingConfig(classes=2), *of_options["training"], "classes", "feature_dim"
        ),
        "rounds": _changed(plain["rounds"], RoundSettings(), *of_options["rounds"]),
        "secure": _changed(plain.get("secure", {}), SecureSettings(), *of_options["secure"]),
        "rollout": _changed(plain["rollout"], type(experiment.rollout)()),
    }
    for section, values in sections.items():
        for key, value in values.items():
            yield f"{section}.{key}={json.dumps(value)}"


def _model_options(experiment: Experiment) -> dict[str, Mapping[str, Any]]:
    """Number the networks where there are several."""
    if not experiment.alternatives:
        return {"model": experiment.model.options}
    return {f"model.{number}": spec.options for number, spec in enumerate(experiment.models, 1)}


def _changed(values: Mapping[str, Any], default: Any, *names: str) -> dict[str, Any]:
    """Return what is neither the default nor among `names`."""
    plain = default.model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in names and value != plain.get(key)}


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


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


ALL_TRAINED = "Every window is trained on and none is a test window (data.test_share=0), so there are no scores."
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
    "analyses": "After each evaluated round. Loss and gradients are the server's model's over the training examples of "
    "all clients, or of 100 where there are 1,000 or more: L_k is client k's mean loss, dropout off, and "
    "∇L = Σ n_k ∇L_k / Σ n_k. The aggregate margin is the mean distance between prototypes of different classes, "
    "which are means over the round's clients.",
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


def write_report(run: RunDirectory, *, figures: bool = True) -> Path:
    """Write DIR/report.html from the files and the plots of the run; with figures, draw the plots if there are none."""
    paths = [run.path / "plots" / f"{name}.png" for name in CAPTIONS]
    if figures and not any(path.is_file() for path in paths):
        from sim.reports.figures.run_figures import draw_run  # loads matplotlib

        draw_run(run)
    drawn = {path.stem: data_uri(path) for path in paths if path.is_file()}
    html = render(
        "report.html",
        run=run,
        figures=drawn,
        captions=CAPTIONS,
        definitions=summary.DEFINITIONS,
        choices=summary.CHOICES,
        selected_names=summary.SELECTED,
        selected=summary.selected_texts(run),
        trusted=run.summary.trusted if run.summary else "last",
        cost=summary.cost_line(run.summary) if run.summary else "",
        metrics=run.config.metrics,
        class_metric=run.config.learnt.class_metric,
        data_settings=list(data_settings(run.config)),
        scores=selected_table(run),
        rounds=rounds_table(run),
        clients=clients_table(run),
        classes=classes_table(run),
        new_clients=new_clients_table(run),
        settings=settings_tables(run),
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
        none = not config.data.test_share and config.data.split != "kfold7_3"
        yield "Split", "none" if none else config.data.split, ALL_TRAINED if none else LEAKS.get(config.data.split, "")
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
    environment.filters.update(bytes=summary.byte_size, duration=summary.duration)
    return environment.get_template(template).render(**values)


def data_uri(path: Path) -> str:
    """Return a PNG as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
