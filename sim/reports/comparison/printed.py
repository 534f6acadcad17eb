"""A comparison in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

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
from sim.reports.table import Cell, ReportTable, escaped, markdown_table, printed_table, table_of
from sim.results.records import SELECTIONS
from sim.results.tables import CHOICES, DEFINITIONS, SELECTED, choice, duration

SERVED_BY_CLIENTS = ("personalization", "generalization")


class TitledTable(NamedTuple):
    """A table of a group, under its title; the first one has none."""

    title: str
    table: ReportTable
    note: str = ""


def group_tables(group: Group) -> list[TitledTable]:
    """Return the tables of a group in their order."""
    tests, overhead = paired_table(group), overhead_table(group)
    return [
        TitledTable("", scores_table(group)),
        *([TitledTable("Against the baseline, seed by seed", tests)] if tests else []),
        TitledTable("The same runs in three rounds", selected_table(group)),
        *([TitledTable("What a client pays, against the baseline", overhead, OVERHEAD_NOTE)] if overhead else []),
    ]


def markdown(comparison: Comparison) -> str:
    """Write the whole comparison as Markdown."""
    parts = ["# Comparison", *_quoted(comparison.warnings)]
    for group in comparison.groups:
        parts += [f"## {escaped(group.title)}", *_quoted(group_notes(group)), choice(comparison.selection)]
        for title, table, note in group_tables(group):
            parts += [*([f"{title}:"] if title else []), markdown_table(table), *([note] if note else [])]
    for over in comparison.over_datasets:
        parts += [f"## {escaped(ranking_title(over))}", ranking_summary(over), markdown_table(ranking_table(over))]
    definitions = [f"- **{name}**: {text}" for name, text in DEFINITIONS.items()]
    definitions += [f"- **{SELECTED[selection]}**: {CHOICES[selection]}" for selection in SELECTIONS]
    notes = " ".join([RANKS_NOTE, REFERENCE_NOTE, SEEDS_NOTE, "Bytes are per client and round, time is per run."])
    ranking = [RANKING_NOTE] if comparison.over_datasets else []
    return "\n\n".join([*parts, "\n".join(definitions), escaped(notes), TESTS_NOTE, *ranking]) + "\n"


def _quoted(notes: Sequence[str]) -> list[str]:
    return ["\n".join(f"> - {escaped(note)}" for note in notes)] if notes else []


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print of every group the scores (the primary metric first), the tests and the cost; all fit 80 columns."""
    console = console or Console()
    for warning in comparison.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for group in comparison.groups:
        for title, table in _narrow_tables(group, SELECTED[comparison.selection]):
            console.print(printed_table(title, table))
        for note in group_notes(group):
            console.print(Text(f"! {note}", style="bold red" if group.refused else "yellow"))
    console.print(Text(f"{choice(comparison.selection)} {RANKS_NOTE}", style="dim"))


def _narrow_tables(group: Group, selection: str) -> Iterator[tuple[str, ReportTable]]:
    """Yield a group's tables with what 80 columns have room for: the files have the rest."""
    metric = group.metrics[group.primary]
    shown = " over ".join(each.label for each in group.metrics.values()) + metric.unit
    head = ("method", "pers.", "worst 10 %", "gen.", "global")
    scored = (cells for row in group.rows for cells in _score_rows(group, row))
    yield f"{group.title}: {shown}, {selection}", table_of(head, scored)
    costs = [
        (row_name(row), *traffic(row), duration(row.seconds), spanned(row.chosen_rounds), row.rounds)
        for row in group.rows
    ]
    head = ("method", "up", "down", "time", "round", "of")
    yield "per client and round; time of the run", table_of(head, costs)
    columns = columns_of([group.primary], SERVED_BY_CLIENTS)
    tests = [
        [Cell(row_name(row), 0, f"− {row.baseline}"), *(paired_cell(row.tests.get(each), metric) for each in columns)]
        for row in group.rows
        if row.tests
    ]
    if tests:
        title = f"{metric.label} against the baseline, 95 % intervals over seeds"
        yield title, table_of(("method", "pers.", "gen."), tests)
    head = ("method", "chosen", "round", "pers.", "gen.", "global")
    yield f"{metric.label} in three rounds", table_of(head, _chosen_rows(group))
    if overhead := overhead_table(group):
        yield "what a client pays, against the baseline", overhead


def _score_rows(group: Group, row: Row) -> Iterator[list[Cell]]:
    """Yield a row of the primary metric, below the method's name, and one for each other metric."""
    for name, metric in group.metrics.items():
        cells = [score_cell(row, f"{score}.{name}", metric) for score in SCORES]
        if name == group.primary:
            yield [Cell(row_name(row), 0, row.model), *cells]
        else:
            yield [Cell(f"  {metric.label}"), *(cell._replace(note="") for cell in cells)]


def _chosen_rows(group: Group) -> Iterator[list[str]]:
    columns, metric = columns_of([group.primary], (*SERVED_BY_CLIENTS, "global")), group.metrics[group.primary]
    for row in group.rows:
        for selection, found in row.selected.items():
            scores = [plain_cell(found.scores.get(column), metric).text for column in columns]
            yield [row_name(row), SELECTED[selection], spanned(found.rounds), *scores]
