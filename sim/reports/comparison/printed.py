"""A comparison on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gaitway.terminal import Console
from sim.reports.comparison.overhead import overhead_table
from sim.reports.comparison.records import SCORES, Comparison, Group, Row, columns_of
from sim.reports.comparison.tables import (
    RANKS_NOTE,
    group_notes,
    paired_cell,
    plain_cell,
    row_name,
    score_cell,
    spanned,
    traffic,
)
from sim.reports.table import Cell, ReportTable, printed_table, table_of
from sim.results.tables import SELECTED, choice, duration

SERVED_BY_CLIENTS = ("personalization", "generalization")


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print of every group the scores (the primary metric first), the tests and the cost; all fit 80 columns."""
    console = console or Console()
    for warning in comparison.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    for group in comparison.groups:
        for table in _narrow_tables(group, SELECTED[comparison.selection]):
            console.print(printed_table(table))
        for note in group_notes(group):
            console.print(Text(f"! {note}", style="bold red" if group.refused else "yellow"))
    console.print(Text(f"{choice(comparison.selection)} {RANKS_NOTE}", style="dim"))


def _narrow_tables(group: Group, selection: str) -> Iterator[ReportTable]:
    """Yield a group's tables with what 80 columns have room for: the files have the rest."""
    metric = group.metrics[group.primary]
    shown = " over ".join(scored_metric.label for scored_metric in group.metrics.values()) + metric.unit
    head = ["method", "pers.", "worst 10 %", "gen.", "global"]
    scored = (cells for row in group.rows for cells in _score_rows(group, row))
    yield table_of(head, scored, f"{group.title}: {shown}, {selection}")
    costs = [
        (row_name(row), *traffic(row), duration(row.seconds), spanned(row.chosen_rounds), row.rounds)
        for row in group.rows
    ]
    head = ["method", "up", "down", "time", "round", "of"]
    yield table_of(head, costs, "per client and round; time of the run")
    columns = columns_of([group.primary], SERVED_BY_CLIENTS)
    tests = [
        [Cell(row_name(row), 0, f"− {row.baseline}"), *(paired_cell(row.tests.get(score), metric) for score in columns)]
        for row in group.rows
        if row.tests
    ]
    if tests:
        title = f"{metric.label} against the baseline, 95 % intervals over seeds"
        yield table_of(("method", "pers.", "gen."), tests, title)
    head = ["method", "chosen", "round", "pers.", "gen.", "global"]
    yield table_of(head, _chosen_rows(group), f"{metric.label} in three rounds")
    if overhead := overhead_table(group):
        yield overhead


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
