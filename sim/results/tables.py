"""Scores, bytes and seconds as people read them: numbers as text, and a run's table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from gaitway.tasks import Metric
from gaitway.terminal import Console
from sim.results.run_directory import RunDirectory
from sim.scores.records import SELECTIONS, MeanStd, SelectedRound, Selection, Spread, Summary

DEFINITIONS = {
    "personalization": "each client's own trained model on its own test set; mean ± standard deviation over clients",
    "generalization": "the same client models on the union of all clients' test sets; mean ± standard deviation",
    "global": "the server's model on the union of all test sets; methods without a server model have none",
    "worst": "the mean personalization of the worst tenth of the clients (⌊K/10⌋, one at least), each metric's own",
}
SELECTED = {"validation": "by validation", "last": "last round", "best": "best by test"}
"""How a round is chosen, in short."""
CHOICES = {
    "validation": "the round with the best mean personalization on validation examples, which are not trained on",
    "last": "the last round, whatever it scored",
    "best": "the round with the best mean personalization on the test examples, as the papers choose it: "
    "what is chosen by the test scores is flattered by them",
}


def choice(selection: Selection) -> str:
    """Say in a sentence of which round a table's scores are."""
    return f"Personalization, generalization and global are of {CHOICES[selection]}."


def spread_text(metric: Metric, score: MeanStd) -> str:
    """Write `mean ± std`."""
    return f"{metric.text(score.mean)} ± {metric.text(score.std)}"


def byte_size(count: float) -> str:
    """Write a number of bytes with a decimal unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Write seconds as `12.3 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


# ---- one run


def print_summary(run: RunDirectory, console: Console | None = None) -> None:
    """Print the three scores of a run in every round that was chosen, or how far it is; fits 80 columns."""
    console = console or Console()
    config, summary = run.config, run.summary
    title = f"{config.dataset} · {config.model_name} · {config.method_name}"
    if summary is None:
        console.print(Text(f"{title}: {len(run.rounds)} of {config.planned_rounds} rounds done, not finished"))
        return
    if summary.is_unscored:
        loss = run.rounds[-1].train_loss
        measured = "nobody trained" if loss is None else f"training loss {loss:.3f} in the last round"
        console.print(Text(f"{title}: no test examples, so no scores; {measured}"))
        console.print(Text(cost_line(summary)))
        return
    table = Table(title=title, box=box.SIMPLE, title_style="bold", title_justify="left")
    first, *others = config.metrics.values()
    table.add_column(first.label + first.unit, no_wrap=True)
    chosen = selected_texts(run)
    for selection, (number, _) in chosen.items():
        table.add_column(f"{SELECTED[selection]}\nround {number}", justify="right", no_wrap=True)
    for score in DEFINITIONS:
        names = "\n".join([score, *(f"  {metric.label}" for metric in others)])
        table.add_row(names, *("\n".join(texts[score]) for _, texts in chosen.values()))
    console.print(table)
    for selection in chosen:
        console.print(Text(f"{SELECTED[selection]}: {CHOICES[selection]}.", style="dim"))
    console.print(Text(cost_line(summary)))


ScoreTexts = dict[str, tuple[str, ...]]
"""Each of the task's metrics as text, by score."""


def selected_texts(run: RunDirectory) -> dict[Selection, tuple[int, ScoreTexts]]:
    """List each chosen round of a finished run and its scores as text; the one to trust first."""
    found: dict[Selection, tuple[int, ScoreTexts]] = {}
    for selection in SELECTIONS:
        if run.summary is not None and (chosen := run.summary.selected(selection)) is not None:
            metrics = run.config.metrics
            worst = tuple(metric.text(run.worst_tenth(name, selection)) for name, metric in metrics.items())
            found[selection] = chosen.round, {**score_texts(chosen, metrics), "worst": worst}
    return found


def score_texts(chosen: SelectedRound, metrics: Mapping[str, Metric]) -> ScoreTexts:
    """Return each metric of each score as text."""
    server = chosen.global_ or {}
    return {
        "personalization": spread_texts(chosen.personalization, metrics),
        "generalization": spread_texts(chosen.generalization, metrics),
        "global": tuple(metric.text(server.get(name)) for name, metric in metrics.items()),
    }


def spread_texts(part: Spread | None, metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Write each metric of a score of many clients as text."""
    return tuple(spread_text(metric, part[name]) if part else "–" for name, metric in metrics.items())


def cost_line(summary: Summary) -> str:
    """Return rounds, bytes and time in one sentence."""
    traffic = f"{byte_size(summary.bytes_up)} up, {byte_size(summary.bytes_down)} down per client and round"
    total = duration(summary.seconds["total"])
    return f"{summary.rounds} rounds of {summary.clients} clients; {traffic}; {total}."
