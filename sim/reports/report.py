"""One self-contained report.html of a run: no script, no network, images inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from har_pipeline import dataset_names
from har_pipeline.combination import combination_of
from sim.reports import run_tables
from sim.reports.repeat import repeat_command
from sim.results import tables
from sim.results.run_directory import RunDirectory
from sim.scores.records import RunConfig

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
        definitions=tables.DEFINITIONS,
        choices=tables.CHOICES,
        selected_names=tables.SELECTED,
        selected=tables.selected_texts(run),
        trusted=run.summary.trusted if run.summary else "last",
        cost=tables.cost_line(run.summary) if run.summary else "",
        metrics=run.config.metrics,
        class_metric=run.config.learnt.class_metric,
        data_settings=list(data_settings(run.config)),
        scores=run_tables.selected_table(run),
        rounds=run_tables.rounds_table(run),
        clients=run_tables.clients_table(run),
        classes=run_tables.classes_table(run),
        new_clients=run_tables.new_clients_table(run),
        settings=run_tables.settings_tables(run),
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
    environment.filters.update(bytes=tables.byte_size, duration=tables.duration)
    return environment.get_template(template).render(**values)


def data_uri(path: Path) -> str:
    """Return a PNG as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
