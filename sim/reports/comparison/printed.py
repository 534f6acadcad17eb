"""A comparison in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from gaitway.tasks import Metric
from gaitway.terminal import Console
from sim.reports.comparison.overhead import NOTE as OVERHEAD_NOTE
from sim.reports.comparison.overhead import overhead_table
from sim.reports.comparison.records import SCORES, Comparison, Group, Row, columns_of
from sim.reports.comparison.tables import (
    RANKING_NOTE,
    RANKS_NOTE,
    REFERENCE_NOTE,
    SEEDS_NOTE,
    TESTS_NOTE,
    Cell,
    chance,
    client_spread,
    group_notes,
    paired_cell,
    paired_table,
    plain_cell,
    ranking_summary,
    ranking_table,
    ranking_title,
    row_name,
    score_cell,
    scores_table,
    selected_table,
    spanned,
    traffic,
)
from sim.results.records import SELECTIONS
from sim.results.tables import CHOICES, DEFINITIONS, SELECTED, choice, duration

_RANK_STYLES = ("", "bold", "underline")
SERVED_BY_CLIENTS = ("personalization", "generalization")


def markdown(comparison: Comparison) -> str:
    """Write the whole comparison as Markdown (GitHub's tables; `<u>` underlines the second)."""
    parts = ["# Comparison", *_quoted(comparison.warnings)]
    for group in comparison.groups:
        parts += [f"## {_escaped(group.title)}", *_quoted(group_notes(group)), choice(comparison.selection)]
        parts += [_table(*scores_table(group))]
        if tests := paired_table(group):
            parts += ["Against the baseline, seed by seed:", _table(*tests)]
        parts += ["The same runs in three rounds:", _table(*selected_table(group))]
        if overhead := overhead_table(group):
            parts += ["What a client pays, against the baseline:", _table(*overhead), OVERHEAD_NOTE]
    for over in comparison.over_datasets:
        parts += [f"## {_escaped(ranking_title(over))}", ranking_summary(over), _table(*ranking_table(over))]
    definitions = [f"- **{name}**: {text}" for name, text in DEFINITIONS.items()]
    definitions += [f"- **{SELECTED[selection]}**: {CHOICES[selection]}" for selection in SELECTIONS]
    notes = " ".join([RANKS_NOTE, REFERENCE_NOTE, SEEDS_NOTE, "Bytes are per client and round, time is per run."])
    ranking = [RANKING_NOTE] if comparison.over_datasets else []
    return "\n\n".join([*parts, "\n".join(definitions), _escaped(notes), TESTS_NOTE, *ranking]) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *([_marked(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    """Print of every group the scores (the primary metric first), the tests and the cost; all fit 80 columns."""
    console = console or Console()
    for warning in comparison.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for group in comparison.groups:
        console.print(_scores_table(group, SELECTED[comparison.selection]), _cost_table(group))
        if any(row.tests for row in group.rows):
            console.print(_paired_table(group))
        console.print(_selected_table(group))
        if overhead := overhead_table(group):
            console.print(_overhead_table(*overhead))
        for note in group_notes(group):
            console.print(Text(f"! {note}", style="bold red" if group.refused else "yellow"))
    console.print(Text(f"{choice(comparison.selection)} {RANKS_NOTE}", style="dim"))


def _scores_table(group: Group, selection: str) -> Table:
    shown = " over ".join(metric.label for metric in group.metrics.values()) + group.metrics[group.primary].unit
    table = _ruled(f"{group.title}: {shown}, {selection}", ("method", "pers.", "worst 10 %", "gen.", "global"))
    for row in group.rows:
        table.add_row(Text(f"{row_name(row)}\n{row.model}"), *(_score_text(group, row, score) for score in SCORES))
    return table


def _cost_table(group: Group) -> Table:
    head = ("method", "up", "down", "time", "round", "of")
    table = _ruled("per client and round; time of the run", head)
    for row in group.rows:
        cost = [*traffic(row), duration(row.seconds)]
        table.add_row(Text(row_name(row)), *cost, spanned(row.chosen_rounds), str(row.rounds))
    return table


def _overhead_table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    table = _ruled("what a client pays, against the baseline", head)
    for row in rows:
        table.add_row(*(Text(cell.text) for cell in row))
    return table


def _paired_table(group: Group) -> Table:
    """Personalization and generalization alone: the files have the rest."""
    columns, metric = columns_of([group.primary], SERVED_BY_CLIENTS), group.metrics[group.primary]
    title = f"{metric.label} against the baseline, 95 % intervals over seeds"
    table = _ruled(title, ("method", "pers.", "gen."))
    for row in group.rows:
        if row.tests:
            cells = (_paired_text(row, each, metric) for each in columns)
            table.add_row(Text(f"{row_name(row)}\n− {row.baseline}"), *cells)
    return table


def _paired_text(row: Row, column: str, metric: Metric) -> Text:
    test = row.tests.get(column)
    cell = paired_cell(test, metric)
    lines = [Text(cell.text, style=_RANK_STYLES[cell.rank])]
    if test is not None:
        # a thought a line, so that two such columns fit 80 characters
        said = (*chance(test).split(", ", 1), *client_spread(test, metric).split(", ", 1))
        lines += [Text(line, style="dim") for line in said]
    return Text("\n").join(lines)


def _selected_table(group: Group) -> Table:
    metric, shown = group.metrics[group.primary], (*SERVED_BY_CLIENTS, "global")
    table = _ruled(f"{metric.label} in three rounds", ("method", "chosen", "round", "pers.", "gen.", "global"))
    for row in group.rows:
        for selection, found in row.selected.items():
            scores = (found.scores.get(column) for column in columns_of([group.primary], shown))
            cells = [plain_cell(score, metric).text for score in scores]
            table.add_row(Text(row_name(row)), SELECTED[selection], spanned(found.rounds), *cells)
    return table


def _ruled(title: str, head: Sequence[str]) -> Table:
    """Start a table with its first column to the left and numbers, never cut, to the right."""
    table = Table(title=title, box=box.SIMPLE, title_style="bold", title_justify="left")
    table.add_column(head[0])
    for name in head[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _score_text(group: Group, row: Row, score: str) -> Text:
    lines = []
    for name, metric in group.metrics.items():
        cell = score_cell(row, f"{score}.{name}", metric)
        lines.append(Text(cell.text, style=_RANK_STYLES[cell.rank]))
        if cell.note and name == group.primary:
            lines.append(Text(cell.note, style="dim"))
    return Text("\n").join(lines)
