"""Scores, bytes and seconds as people read them: numbers as text, and a run's table for the terminal."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.results.records import SELECTIONS, MeanStd, SelectedRound, Selection, Spread, Summary
from sim.results.run_directory import RunDirectory

DEFINITIONS = {
    "personalization": "each client's own trained model on its own test set; mean ± standard deviation over clients",
    "generalization": "the same client models on the union of all clients' test sets; mean ± standard deviation",
    "global": "the server's model on the union of all test sets; methods without a server model have none",
    "worst": "the mean personalization of the lowest tenth of the clients (⌊K/10⌋, one at least), each measure's own",
}
SELECTED = {"validation": "by validation", "last": "last round", "best": "best by test"}
"""How a round is chosen, in short."""
CHOICES = {
    "validation": "the round with the best mean personalization (macro-F1) on validation examples, which are not "
    "trained on",
    "last": "the last round, whatever it scored",
    "best": "the round with the best mean personalization (macro-F1) on the test examples, as the papers choose it: "
    "what is chosen by the test scores is flattered by them",
}


def choice(selection: Selection) -> str:
    """Say in a sentence of which round a table's scores are."""
    return f"Personalization, generalization and global are of {CHOICES[selection]}."


def percent(score: float | None) -> str:
    """Write a score between 0 and 1 in percent with two decimals, `–` for none."""
    return "–" if score is None or math.isnan(score) else f"{100 * score:.2f}"


def percent_spread(score: MeanStd) -> str:
    """Write `mean ± std` in percent."""
    return f"{percent(score.mean)} ± {percent(score.std)}"


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
    table = Table(title=title, box=box.SIMPLE, title_style="bold", title_justify="left")
    table.add_column("%", no_wrap=True)
    chosen = selected_texts(run)
    for selection, (number, _) in chosen.items():
        table.add_column(f"{SELECTED[selection]}\nround {number}", justify="right", no_wrap=True)
    for score in DEFINITIONS:
        table.add_row(f"{score}\n  accuracy", *("\n".join(texts[score]) for _, texts in chosen.values()))
    console.print(table)
    for selection in chosen:
        console.print(Text(f"{SELECTED[selection]}: {CHOICES[selection]}.", style="dim"))
    console.print(Text(cost_line(summary)))


ScoreTexts = dict[str, tuple[str, str]]
"""Macro-F1 and accuracy by score."""


def selected_texts(run: RunDirectory) -> dict[Selection, tuple[int, ScoreTexts]]:
    """Of a finished run, each round that was chosen and its scores as text; the one to trust first."""
    found: dict[Selection, tuple[int, ScoreTexts]] = {}
    for selection in SELECTIONS:
        if run.summary is not None and (chosen := run.summary.selected(selection)) is not None:
            worst = (percent(run.worst_tenth("macro_f1", selection)), percent(run.worst_tenth("accuracy", selection)))
            found[selection] = chosen.round, {**score_texts(chosen), "worst": worst}
    return found


def score_texts(chosen: SelectedRound) -> ScoreTexts:
    """Macro-F1 and accuracy of each score as text."""
    server = chosen.global_
    return {
        "personalization": _spread_texts(chosen.personalization),
        "generalization": _spread_texts(chosen.generalization),
        "global": (percent(server.macro_f1), percent(server.accuracy)) if server else ("–", "–"),
    }


def _spread_texts(part: Spread | None) -> tuple[str, str]:
    return (percent_spread(part.macro_f1), percent_spread(part.accuracy)) if part else ("–", "–")


def cost_line(summary: Summary) -> str:
    """Rounds, bytes and time in one sentence."""
    traffic = f"{byte_size(summary.bytes_up)} up, {byte_size(summary.bytes_down)} down per client and round"
    total = duration(summary.seconds["total"])
    return f"{summary.rounds} rounds of {summary.clients} clients; {traffic}; {total}."
