"""A partition as a terminal table: clients, their sizes, their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from sim.data.partitions.partition import Counts, Indices, Share, class_counts

MAX_ROWS = 30
"""Up to so many clients are all listed; of more, those at these places in the order of size."""
PLACES = {"smallest": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9, "largest": 1.0}
MAX_COLUMNS = 12
"""Up to so many classes have a column each; of more, a client's largest three are named."""


def partition_table(shares: Mapping[str, Share], y: Indices, labels: Sequence[str]) -> Table:
    """Return clients × classes: training and test examples, how many classes are held, training examples of each."""
    train, test = (class_counts(shares, y, len(labels), part) for part in ("train", "test"))
    names, sizes = list(shares), train.sum(axis=1)
    table = Table(title=_title(train), box=box.SIMPLE, title_style="bold", title_justify="left", show_footer=True)
    table.padding, table.pad_edge = (0, 0, 0, 0), False  # ten classes of four digits fit 80 columns
    table.add_column("client", f"all {len(names)}", no_wrap=True)
    held = np.count_nonzero(train.sum(axis=0))
    for head, total in {"train": sizes.sum(), "test": test.sum(), "held": held}.items():
        _number_column(table, head, str(total))
    if len(labels) <= MAX_COLUMNS:
        for label, total in zip(labels, train.sum(axis=0), strict=True):
            _number_column(table, label, str(total))
    else:
        table.add_column("largest classes")
    for title, k in _rows(names, sizes):
        counts = (str(sizes[k]), str(test[k].sum()), str(np.count_nonzero(train[k])))
        table.add_row(Text(title), *counts, *_classes(train[k], labels))
    return table


def _number_column(table: Table, head: str, total: str) -> None:
    """Add a column whose numbers are never cut; its head may be."""
    table.add_column(Text(head), total, justify="right", min_width=max(4, len(total)), overflow="ellipsis")


def _title(train: Counts) -> str:
    sizes, held = train.sum(axis=1), (train > 0).sum(axis=1)
    return (
        f"{len(train)} clients; training examples {sizes.mean():.1f} ± {sizes.std():.1f} "
        f"({sizes.min()} to {sizes.max()}), classes {held.mean():.1f} ± {held.std():.1f}"
    )


def _rows(names: Sequence[str], sizes: Indices) -> list[tuple[str, int]]:
    if len(names) <= MAX_ROWS:
        return [(name, k) for k, name in enumerate(names)]
    order = np.argsort(sizes, kind="stable")
    chosen = {place: int(order[round(share * (len(names) - 1))]) for place, share in PLACES.items()}
    return list(chosen.items())


def _classes(row: Indices, labels: Sequence[str]) -> list[Text]:
    if len(labels) <= MAX_COLUMNS:
        return [Text(str(count) if count else "·", style="" if count else "dim") for count in row]
    largest = [c for c in np.argsort(-row, kind="stable")[:3] if row[c]]
    return [Text(", ".join(f"{labels[c]} {row[c]}" for c in largest))]
