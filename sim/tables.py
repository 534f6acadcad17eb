"""Scores, bytes and seconds as people read them: numbers as text, and tables for the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.comparison import COLUMNS, MEASURES, SCORES, Comparison, Group, Row
from sim.run_directory import MeanStd, RunDirectory, Spread, Summary

DEFINITIONS = {
    "personalization": "each client's own trained model on its own test set; mean ± standard deviation over clients",
    "generalization": "the same client models on the union of all clients' test sets; mean ± standard deviation",
    "global": "the server's model on the union of all test sets; methods without a server model have none",
}
CHOICE = "Personalization, generalization and global are of the round with the best mean personalization (macro-F1)."
RANKS_NOTE = "Best in bold, second underlined; equal after rounding shares a place. Scores in %, MB = 10⁶ bytes."
SEEDS_NOTE = (
    "Over several seeds: the mean of the means, ± the mean of the standard deviations over clients; "
    "beside it the sample standard deviation of the means over seeds."
)
_SHORT = {
    "personalization": "pers.",
    "generalization": "gen.",
    "global": "global",
    "macro_f1": "F1",
    "accuracy": "acc.",
}
_RANK_STYLES = ("", "bold", "underline")


@dataclass(frozen=True)
class Cell:
    """One entry of a comparison: its text, 1 if best or 2 if second, and what stands beside it in small."""

    text: str
    rank: int = 0
    note: str = ""


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


# ---- comparison


def comparison_table(group: Group) -> tuple[list[str], list[list[Cell]]]:
    """Head and cells of a group's table; the model has a column where rows differ in it."""
    mixed = len({row.model for row in group.rows}) > 1
    scores = [f"{_SHORT[score]} {_SHORT[measure]}" for measure in MEASURES for score in SCORES]
    head = ["method", *(["model"] if mixed else []), *scores]
    head += ["up", "down", "time", "rounds", "best round", "seeds"]
    return head, [_cells(row, mixed) for row in group.rows]


def _cells(row: Row, mixed: bool) -> list[Cell]:
    model = [Cell(row.model)] if mixed else []
    cost = [byte_size(row.bytes_up), byte_size(row.bytes_down), duration(row.seconds)]
    counts = [str(row.rounds), _listed(row.best_rounds), _listed(row.seeds)]
    return [Cell(row.label), *model, *(score_cell(row, column) for column in COLUMNS), *map(Cell, cost + counts)]


def score_cell(row: Row, column: str) -> Cell:
    """One score of a row, such as `personalization.macro_f1`."""
    score = row.scores[column]
    if score is None:
        return Cell("–")
    std = "" if score.clients_std is None else f" ± {percent(score.clients_std)}"
    note = "" if score.seeds_std is None else f"seeds ± {percent(score.seeds_std)}"
    return Cell(percent(score.mean) + std, row.ranks[column], note)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def markdown(comparison: Comparison) -> str:
    """Write the whole comparison as Markdown (GitHub's tables; `<u>` underlines the second)."""
    parts = ["# Comparison", *_quoted(comparison.warnings)]
    for group in comparison.groups:
        head, rows = comparison_table(group)
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *([_marked(cell) for cell in row] for row in rows)]
        parts += [f"## {group.data} · {group.model}", *_quoted(group_notes(group))]
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    definitions = [f"- **{name}**: {text}" for name, text in DEFINITIONS.items()]
    notes = " ".join([CHOICE, RANKS_NOTE, SEEDS_NOTE, "Bytes are per client and round, time is per run."])
    return "\n\n".join([*parts, "\n".join(definitions), notes]) + "\n"


def group_notes(group: Group) -> list[str]:
    """Every reason not to trust a rank of this group, the gravest first."""
    refused = [f"NOT COMPARABLE, therefore not ranked: {reason}" for reason in group.refused]
    return [*refused, *(f"Caution: {warning}" for warning in group.warnings)]


def _quoted(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"> - {_escaped(note)}" for note in notes)] if notes else []


def _marked(cell: Cell) -> str:
    text = _escaped(cell.text)
    text = (text, f"**{text}**", f"<u>{text}</u>")[cell.rank]
    return f"{text} ({_escaped(cell.note)})" if cell.note else text


def _escaped(text: str) -> str:
    for character in "\\|<*_`[":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print of every group the scores (macro-F1, accuracy beneath it) and the cost; both fit 80 columns."""
    console = console or Console()
    for warning in comparison.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for group in comparison.groups:
        console.print(_scores_table(group), _cost_table(group))
        for note in group_notes(group):
            console.print(Text(f"! {note}", style="bold red" if group.refused else "yellow"))
    console.print(Text(f"{CHOICE} {RANKS_NOTE}", style="dim"))


def _scores_table(group: Group) -> Table:
    table = _table(f"{group.data} · {group.model}: macro-F1 over accuracy (%)", ("method", *SCORES))
    for row in group.rows:
        table.add_row(Text(f"{row.label}\n{row.model}"), *(_score_text(row, score) for score in SCORES))
    return table


def _cost_table(group: Group) -> Table:
    head = ("method", "up", "down", "time", "best round", "of")
    table = _table("per client and round; time of the run", head)
    for row in group.rows:
        cost = [byte_size(row.bytes_up), byte_size(row.bytes_down), duration(row.seconds)]
        table.add_row(Text(row.label), *cost, _listed(row.best_rounds), str(row.rounds))
    return table


def _table(title: str, head: Sequence[str]) -> Table:
    """Start a table with its first column to the left and numbers, never cut, to the right."""
    table = Table(title=title, box=box.SIMPLE, title_style="bold", title_justify="left")
    table.add_column(head[0])
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _score_text(row: Row, score: str) -> Text:
    lines = []
    for measure in MEASURES:
        cell = score_cell(row, f"{score}.{measure}")
        lines.append(Text(cell.text, style=_RANK_STYLES[cell.rank]))
        if cell.note and measure == "macro_f1":
            lines.append(Text(cell.note, style="dim"))
    return Text("\n").join(lines)


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
    spreads: dict[str, Spread] = {"personalization": summary.personalization, "generalization": summary.generalization}
    texts = {name: (percent_spread(part.macro_f1), percent_spread(part.accuracy)) for name, part in spreads.items()}
    server = summary.global_
    texts["global"] = (percent(server.macro_f1), percent(server.accuracy)) if server else ("–", "–")
    return texts


def cost_line(summary: Summary) -> str:
    """Best round, bytes and time in one sentence."""
    traffic = f"{byte_size(summary.bytes_up)} up and {byte_size(summary.bytes_down)} down per client and round"
    total = duration(summary.seconds["total"])
    return f"Best round {summary.best_round} of {summary.rounds}; {summary.clients} clients; {traffic}; {total} in all."
