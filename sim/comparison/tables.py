"""A comparison as tables of cells, from which HTML, Markdown and the terminal are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.comparison.records import COLUMNS, NEW_USERS, PAIRED_COLUMNS, Group, OverDatasets, Row
from sim.statistics import PairedTest
from sim.tables import byte_size, duration, percent

SIGNIFICANT = 0.05
RANKS_NOTE = "Best in bold, second underlined; equal after rounding shares a place. Scores in %, MB = 10⁶ bytes."
SEEDS_NOTE = (
    "Over several seeds: the mean of the means, ± the mean of the standard deviations over clients; "
    "beside it the sample standard deviation of the means over seeds."
)
REFERENCE_NOTE = "* trains on everybody's data in one place: a reference, which takes no part in the ranks."
TESTS_NOTE = (
    "Difference to the baseline in percentage points: the mean over clients of each client's mean over the common "
    "seeds, with a 95 % confidence interval (bootstrap over clients, BCa: it says what other clients would change, not "
    "what other seeds would). p: Wilcoxon's signed-rank test over clients, two-sided, by Holm's correction over the "
    "rows of a column; bold where it is below 0.05. ↑ and ↓ count the clients that are better and worse off."
)
RANKING_NOTE = (
    "Average rank over data sets (1 is best). Bars are as long as Nemenyi's critical difference at α = 0.05 (Demšar "
    "2006): methods whose bars overlap are not told apart by these data sets."
)
SHORT = {
    "personalization": "pers.",
    "worst": "worst 10 %",
    "generalization": "gen.",
    "global": "global",
    "global_per_client": "global p. c.",
    "macro_f1": "F1",
    "accuracy": "acc.",
}


@dataclass(frozen=True)
class Cell:
    """One entry: its text, 1 if best or significant, 2 if second, and what stands beside it in small."""

    text: str
    rank: int = 0
    note: str = ""


Table = tuple[list[str], list[list[Cell]]]
"""Head and rows."""


def scores_table(group: Group) -> Table:
    """Scores and cost of a group's rows; the model has a column where rows differ in it."""
    mixed = len({row.model for row in group.rows}) > 1
    columns = list(dict.fromkeys([*COLUMNS, *(column for row in group.rows for column in row.scores)]))
    head = ["method", *(["model"] if mixed else []), *map(column_name, columns)]
    head += ["up", "down", "time", "rounds", "best round", "seeds"]
    return head, [_score_row(row, columns, mixed) for row in group.rows]


def column_name(column: str) -> str:
    """Name a column in a few letters."""
    score, measure = column.split(".")
    if score.startswith(NEW_USERS):
        return f"new users, k = {score.removeprefix(NEW_USERS)} {SHORT[measure]}"
    return f"{SHORT[score]} {SHORT[measure]}"


def _score_row(row: Row, columns: Sequence[str], mixed: bool) -> list[Cell]:
    model = [Cell(row.model)] if mixed else []
    cost = [*traffic(row), duration(row.seconds)]
    counts = [str(row.rounds), listed(row.best_rounds), listed(row.seeds)]
    scores = [score_cell(row, column) for column in columns]
    return [Cell(row_name(row)), *model, *scores, *map(Cell, cost + counts)]


def row_name(row: Row) -> str:
    """Name a row, with an asterisk if it is a reference."""
    return row.label + ("*" if row.reference else "")


def traffic(row: Row) -> tuple[str, str]:
    """Bytes up and down; a reference's are nobody's: its data lie where it trains."""
    return ("–", "–") if row.reference else (byte_size(row.bytes_up), byte_size(row.bytes_down))


def score_cell(row: Row, column: str) -> Cell:
    """One score of a row, such as `personalization.macro_f1`."""
    score = row.scores.get(column)
    if score is None:
        return Cell("–")
    std = "" if score.clients_std is None else f" ± {percent(score.clients_std)}"
    note = "" if score.seeds_std is None else f"seeds ± {percent(score.seeds_std)}"
    return Cell(percent(score.mean) + std, row.ranks[column], note)


def listed(values: Sequence[int]) -> str:
    """Join numbers by commas."""
    return ", ".join(map(str, values))


# ---- tests


def paired_table(group: Group) -> Table | None:
    """Each row against its baseline; None where no row was tested."""
    rows = [row for row in group.rows if row.tests]
    if not rows:
        return None
    columns = [column for column in PAIRED_COLUMNS if any(column in row.tests for row in rows)]
    head = ["method", "baseline", *map(column_name, columns), "clients", "seeds"]
    return head, [_paired_row(row, columns) for row in rows]


def _paired_row(row: Row, columns: Sequence[str]) -> list[Cell]:
    any_test = next(iter(row.tests.values()))
    cells = [paired_cell(row.tests.get(column)) for column in columns]
    return [Cell(row_name(row)), Cell(row.baseline or ""), *cells, *_counted(any_test)]


def _counted(test: PairedTest) -> list[Cell]:
    return [Cell(str(test.clients)), Cell(listed(test.seeds))]


def paired_cell(test: PairedTest | None) -> Cell:
    """A difference with its interval, p and the clients on either side."""
    if test is None:
        return Cell("–")
    bounds = "" if test.low is None or test.high is None else f" [{points(test.low)}, {points(test.high)}]"
    note = f"p {p_text(test.p_holm)}, {test.better} ↑ {test.worse} ↓"
    return Cell(points(test.difference) + bounds, int(test.p_holm < SIGNIFICANT), note)


def points(difference: float) -> str:
    """Write a difference between -1 and 1 in percentage points with its sign."""
    return f"{100 * difference:+.2f}".replace("-", "−")


def p_text(p: float) -> str:
    """Write a p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def ranking_table(over: OverDatasets) -> Table:
    """Methods by their average rank."""
    rows = sorted(over.ranking.ranks.items(), key=lambda item: item[1])
    return ["method", "average rank"], [[Cell(name), Cell(f"{rank:.2f}")] for name, rank in rows]


def ranking_title(over: OverDatasets) -> str:
    """Say what was ranked."""
    score, measure = over.column.split(".")
    return f"{over.model}: {score}, {SHORT[measure]}, over {', '.join(over.datasets)}"


def ranking_summary(over: OverDatasets) -> str:
    """Say what Friedman's test found."""
    ranking = over.ranking
    return (
        f"Friedman's χ² = {ranking.chi2:.2f} ({len(ranking.ranks)} methods, {ranking.datasets} data sets), "
        f"p {p_text(ranking.p)}; critical difference {ranking.critical_difference:.2f}."
    )


def group_notes(group: Group) -> list[str]:
    """Every reason not to trust a rank of this group, the gravest first."""
    refused = [f"NOT COMPARABLE, therefore not ranked: {reason}" for reason in group.refused]
    return [*refused, *(f"Caution: {warning}" for warning in group.warnings)]
