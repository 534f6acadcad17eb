"""A process that keeps and labels windows until it is killed; its arguments: folder, first batch, limit."""

from __future__ import annotations

import sys
from pathlib import Path

from edge_agent.config.sensors import WindowsSection
from edge_agent.storage.labels import label_span, undo
from edge_agent.storage.window_store import WindowStore
from tests.edge_agent.window_factories import BEGAN_S, LABELS, SETTINGS, window

BATCH = 8


def main(folder: Path, first: int, limit: int) -> None:
    """Keep batch after batch, and say each one's number once it is kept; every third is labelled, some not for long."""
    store, limits = WindowStore(folder), WindowsSection(max_labelled=limit, max_unlabelled=limit)
    print("ready", flush=True)
    for batch in range(first, first + 100_000):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        store.add([window(-1, n) for n in numbers], LABELS, SETTINGS, limits, origin="phone")
        print(batch, flush=True)
        if batch % 3 == 0:
            label_span(store, BEGAN_S + 2.56 * numbers.start, BEGAN_S + 2.56 * numbers.stop, "walk")
        if batch % 6 == 0:
            undo(store)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
