"""Scores, bytes and seconds as people read them: numbers as text, and a run's table for the terminal."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.run_directory import RunDirectory
from sim.run_records import MeanStd, Spread, Summary

DEFINITIONS = {
    "personalization": "each client's own trained model on its own test set; mean ± standard deviation over clients",
    "generalization": "the same client models on the union of all clients' test sets; mean ± standard deviation",
    "global": "the server's model on the union of all test sets; methods without a server model have none",
    "worst": "the mean personalization of the lowest tenth of the clients (⌊K/10⌋, one at least), each measure's own",
}
CHOICE = "Personalization, generalization and global are of the round with the best mean personalization (macro-F1)."


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
    """Print the three scores of a run, or how far it is."""
    console = console or Console()
    config, summary = run.config, run.summary
    title = f"{config.data} · {config.model} · {config.method_name}"
    if summary is None:
        console.print(Text(f"{title}: {len(run.rounds)} of {config.planned_rounds} rounds done, not finished"))
        return
    table = Table(title=title, box=box.SIMPLE, title_style="bold")
    for name, side in (("score (%)", "left"), ("macro-F1", "right"), ("accuracy", "right"), ("what it is", "left")):
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=side == "right")
    for score, texts in score_texts(summary).items():
        table.add_row(score, *texts, DEFINITIONS[score])
    console.print(table)
    console.print(Text(cost_line(summary)))


def score_texts(summary: Summary) -> dict[str, tuple[str, str]]:
    """Macro-F1 and accuracy of each score as text."""
    server = summary.global_
    return {
        "personalization": _spread_texts(summary.personalization),
        "generalization": _spread_texts(summary.generalization),
        "global": (percent(server.macro_f1), percent(server.accuracy)) if server else ("–", "–"),
    }


def _spread_texts(part: Spread | None) -> tuple[str, str]:
    return (percent_spread(part.macro_f1), percent_spread(part.accuracy)) if part else ("–", "–")


def cost_line(summary: Summary) -> str:
    """Best round, bytes and time in one sentence."""
    traffic = f"{byte_size(summary.bytes_up)} up and {byte_size(summary.bytes_down)} down per client and round"
    total = duration(summary.seconds["total"])
    return f"Best round {summary.best_round} of {summary.rounds}; {summary.clients} clients; {traffic}; {total} in all."
