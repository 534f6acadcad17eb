"""What a device has done, as one JSON file beside its database: rounds, present model, judgements."""

from __future__ import annotations

import json
from typing import Any

from edge_agent.files import write_file
from edge_agent.judging import Shelf
from edge_agent.store import RoundRow, Store

FILE_NAME = "summary.json"
SCORES = ("macro_f1_before", "macro_f1_after", "accuracy_before", "accuracy_after", "train_loss")


def summary(store: Store, device: str) -> dict[str, Any]:
    """Describe the device; a score is None where it had no holdout windows, the model where none was good yet."""
    trained = sorted((row for row in store.rounds() if row.update_id), key=lambda row: row.round)
    return {
        "device": device,
        "rounds": [_round(row) for row in trained],
        "model": Shelf(store).present(),
        "adoption": [row.reason for row in store.adoptions()],
    }


def write_summary(store: Store, device: str) -> None:
    """Replace summary.json."""
    write_file(store.folder / FILE_NAME, (json.dumps(summary(store, device), indent=2) + "\n").encode())


def _round(row: RoundRow) -> dict[str, Any]:
    metrics = row.result.get("metrics", {})
    scores = {name: metrics.get(name) for name in SCORES}
    return {"round": row.round, **scores, "seconds": row.result.get("seconds"), "status": row.status}
