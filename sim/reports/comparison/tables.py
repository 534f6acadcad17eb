"""A comparison as tables, on pages and on the terminal, and what a method costs a client against the baseline.

Table 3 of Ek et al. 2024 is the model: the baseline's own figures, and every other row in multiples of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from federation.tasks import TASKS
from gaitway.tasks import Metric
from gaitway.terminal import Console
from sim.reports.comparison.records import (
    NEW_CLIENTS,
    PAIRED,
    SCORES,
    ComparedScore,
    Comparison,
    Group,
    OverDatasets,
    Row,
    columns_of,
)
from sim.reports.table import Cell, ReportTable, printed_table, table_of
from sim.results.run_directory import RunDirectory
from sim.results.statistics import PairedTest, min_sign_flip_p
from sim.results.summary import SELECTED, byte_size, choice, duration
from sim.scores.records import SELECTIONS

NOTE = (
    "Per client: time of one local round; bytes of its network, of what the method remembers and of what the loss "
    "needs, without optimizer and activations; bytes up and down in a round. Times compare where one client trained "
    "after the other on one machine (engine serial)."
)


def train_seconds(run: RunDirectory) -> float | None:
    """Return mean time of one client's local round; None where nobody trained."""
    trained = sum(len(record.cohort) - len(record.lost) for record in run.rounds)
    return sum(record.seconds.get("train", 0.0) for record in run.rounds) / trained if trained else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return mean over seeds; None where one is missing."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return statistics.fmean(known) if known and len(known) == len(numbers) else None


def overhead_table(group: Group) -> ReportTable | None:
    """Return the rows that have a baseline, below it; None where none has, or a reference alone."""
    by_label = {row.label: row for row in group.rows}
    pairs = [(row, by_label[row.baseline]) for row in group.rows if row.baseline in by_label and not row.reference]
    if not pairs:
        return None
    baselines = {baseline.label: baseline for _, baseline in pairs}
    rows = [(row_name(row), "–", *_absolute(row)) for row in baselines.values()]
    rows += [(row_name(row), baseline.label, *_relative(row, baseline)) for row, baseline in pairs]
    head = ["method", "baseline", "local time", "memory", "bytes"]
    return table_of(head, rows, "What a client pays, against the baseline", NOTE)


def _costs(row: Row) -> tuple[float | None, float | None, float | None]:
    return row.train_seconds, row.client_bytes, row.bytes_up + row.bytes_down


def _absolute(row: Row) -> list[str]:
    seconds, held, moved = _costs(row)
    time = "–" if seconds is None else f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)
    return [time, *("–" if count is None else byte_size(count) for count in (held, moved))]


def _relative(row: Row, baseline: Row) -> list[str]:
    pairs = zip(_costs(row), _costs(baseline), strict=True)
    return ["–" if ours is None or not theirs else f"{ours / theirs:.2f} ×" for ours, theirs in pairs]


SIGNIFICANT = 0.05
RANKS_NOTE = "Best in bold, second underlined; equal after rounding shares a place. Shares in %, MB = 10⁶ bytes."
SEEDS_NOTE = (
    "Over several seeds: the mean of the means, ± the mean of the standard deviations over clients; "
    "beside it the sample standard deviation of the means over seeds. ± over clients is how unlike clients are."
)
REFERENCE_NOTE = "* trains on everybody's data in one place: a reference, which takes no part in the ranks."
TESTS_NOTE = (
    "Difference to the baseline in percentage points, seed by seed (each the mean over clients), and the mean over the "
    "common seeds with its 95 % confidence interval by Student's t. p: of the paired t test over seeds, two-sided, by "
    "Holm's correction over the rows of a column; bold where it is below 0.05. signs: the exact permutation test over "
    "seeds, which assumes no distribution and is not corrected; with n seeds it is never below 2/2ⁿ, so fewer than six "
    "cannot reach 0.05. One seed has neither interval nor p: it is no evidence about a method, however many clients "
    "there are, since all of them descend from one server's model. clients: the spread (standard deviation) of the "
    "clients' differences, and how many are better (↑), equal (=) and worse off (↓); it says who gains, not how sure "
    "the difference is."
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
}


def scores_table(group: Group) -> ReportTable:
    """Return scores and cost of a group's rows; the model has a column where rows differ in it."""
    mixed = len({row.model for row in group.rows}) > 1
    columns = list(dict.fromkeys([*columns_of(group.metrics), *(score for row in group.rows for score in row.scores)]))
    named = [column_name(column, group.metric_of(column)) for column in columns]
    head = ["method", *(["model"] if mixed else []), *named, "up", "down", "time", "rounds", "round", "seeds"]
    rows = [
        (
            row_name(row),
            *([row.model] if mixed else []),
            *(score_cell(row, column, group.metric_of(column)) for column in columns),
            *(*traffic(row), duration(row.seconds), row.rounds, listed(row.chosen_rounds), listed(row.seeds)),
        )
        for row in group.rows
    ]
    return table_of(head, rows)


def column_name(column: str, metric: Metric) -> str:
    """Name a column in a few letters."""
    score, _ = column.split(".")
    if score.startswith(NEW_CLIENTS):
        return f"new users, k = {score.removeprefix(NEW_CLIENTS)} {metric.short}"
    return f"{SHORT[score]} {metric.short}"


def row_name(row: Row) -> str:
    """Name a row, with an asterisk if it is a reference."""
    return row.label + ("*" if row.reference else "")


def traffic(row: Row) -> tuple[str, str]:
    """Return bytes up and down; a reference's are nobody's: its data lie where it trains."""
    return ("–", "–") if row.reference else (byte_size(row.bytes_up), byte_size(row.bytes_down))


def score_cell(row: Row, column: str, metric: Metric) -> Cell:
    """Return one score of a row, such as `personalization.macro_f1`."""
    cell = plain_cell(score := row.scores.get(column), metric)
    return cell if score is None else cell._replace(rank=row.ranks[column])


def listed(values: Sequence[int]) -> str:
    """Join numbers by commas."""
    return ", ".join(map(str, values))


def spanned(values: Sequence[int]) -> str:
    """Write many numbers in little room: the only one, or the least and the largest."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


# ---- tests


def paired_table(group: Group) -> ReportTable | None:
    """Return each row against its baseline, seed by seed; None where no row was tested."""
    rows = [row for row in group.rows if row.tests]
    if not rows:
        return None
    columns = [column for column in columns_of(group.metrics, PAIRED) if any(column in row.tests for row in rows)]
    named = [column_name(column, group.metric_of(column)) for column in columns]
    cells = (
        [
            row_name(row),
            row.baseline,
            *(paired_cell(row.tests.get(column), group.metric_of(column)) for column in columns),
            listed(next(iter(row.tests.values())).seeds),
        ]
        for row in rows
    )
    return table_of(["method", "baseline", *named, "seeds"], cells, "Against the baseline, seed by seed")


def paired_cell(test: PairedTest | None, metric: Metric) -> Cell:
    """Return a difference over seeds with its interval and p, then the spread over clients."""
    if test is None:
        return Cell("–")
    text_of = metric.difference_text
    bounds = "" if test.low is None or test.high is None else f" [{text_of(test.low)}, {text_of(test.high)}]"
    std, better, equal, worse = test.spread
    note = f"{chance(test)}; clients ± {metric.text(std)}, {better} ↑ {equal} = {worse} ↓"
    return Cell(text_of(test.difference) + bounds, int(significant(test)), note)


def significant(test: PairedTest) -> bool:
    """Whether the corrected p over seeds is below 0.05; never for a single seed."""
    return test.p_holm is not None and test.p_holm < SIGNIFICANT


def chance(test: PairedTest) -> str:
    """Write what the seeds say of chance."""
    if test.p_holm is None:
        return "one seed, no evidence"
    if test.p_signs is None:
        return f"p {p_text(test.p_holm)}"
    least = "" if test.p_signs > min_sign_flip_p(len(test.seeds)) else ", the least"
    return f"p {p_text(test.p_holm)}, signs {p_text(test.p_signs)}{least}"


# ---- three rounds


def selected_table(group: Group) -> ReportTable:
    """Return the primary metric of each row in the rounds chosen by validation, not at all, and by test."""
    wanted, metric = columns_of([group.primary]), group.metrics[group.primary]
    head = ["method", "model", "round chosen", "round", *(column_name(column, metric) for column in wanted)]
    rows = (
        [row_name(row), row.model, SELECTED[selection], listed(found.rounds)]
        + [plain_cell(found.scores.get(column), metric) for column in wanted]
        for row in group.rows
        for selection in SELECTIONS
        if (found := row.selected.get(selection))
    )
    return table_of(head, rows, "The same runs in three rounds")


def plain_cell(score: ComparedScore | None, metric: Metric) -> Cell:
    """Return one score without a rank: mean and spread over clients, and over seeds beside it."""
    if score is None:
        return Cell("–")
    std = "" if score.clients_std is None else f" ± {metric.text(score.clients_std)}"
    seeds = "" if score.seeds_std is None else f"seeds ± {metric.text(score.seeds_std)}"
    return Cell(metric.text(score.mean) + std, 0, seeds)


def p_text(p: float) -> str:
    """Write a p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def ranking_table(over: OverDatasets) -> ReportTable:
    """Return methods by their average rank."""
    rows = sorted(over.ranking.ranks.items(), key=lambda item: item[1])
    return table_of(["method", "average rank"], [(name, f"{rank:.2f}") for name, rank in rows], note=RANKING_NOTE)


def ranking_title(over: OverDatasets) -> str:
    """Say what was ranked."""
    score, name = over.column.split(".")
    return f"{over.model}: {score}, {TASKS[over.task].metric_kinds[name].short}, over {', '.join(over.datasets)}"


def ranking_summary(over: OverDatasets) -> str:
    """Say what Friedman's test found."""
    ranking = over.ranking
    return (
        f"Friedman's χ² = {ranking.chi2:.2f} ({len(ranking.ranks)} methods, {ranking.datasets} data sets), "
        f"p {p_text(ranking.p)}; critical difference {ranking.critical_difference:.2f}."
    )


def group_notes(group: Group) -> list[str]:
    """Return every reason not to trust a rank of this group, the gravest first."""
    refused = [f"Not comparable, therefore not ranked: {reason}" for reason in group.refused]
    return [*refused, *(f"Caution: {warning}" for warning in group.warnings)]


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
