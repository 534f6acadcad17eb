"""What a method costs a client against the baseline: local training time, memory and bytes.

Table 3 of Ek et al. 2024 is the model: the baseline's own figures, and every other row in multiples of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from sim.reports.comparison.records import Group, Row
from sim.reports.comparison.tables import row_name
from sim.reports.table import ReportTable, table_of
from sim.results.run_directory import RunDirectory
from sim.results.tables import byte_size, duration

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
