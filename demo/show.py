"""What the demo prints: lines, and the tables at its end."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from edge_agent.serving.model_registry import name_of
from gaitway.terminal import Console
from verdict import Outcome, Summaries, weakest

_OF = "JOIN federations f ON f.id = x.federation_id WHERE f.name = ?"
QUERIES = {
    "sums of all devices": f"FROM secure_sums s JOIN rounds x ON x.id = s.round_id {_OF} AND s.stage = 'done'",
    "updates": f"FROM updates x {_OF} AND json_extract(x.manifest, '$.sum') IS NULL",
    "sums of features": f"FROM contributions x {_OF}",
    "counts of windows": f"FROM devices x {_OF} AND x.examples > 1",
    "scores": f"FROM metrics x {_OF}",
}
SHOWN_ROUNDS = 5  # of more, the first and the last are shown: 80 columns hold so many


def line(console: Console, text: str) -> None:
    """Print a line without wrapping it, so that links and paths in it can be copied."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def models(console: Console, summaries: Summaries) -> None:
    """Print each device's scores by round, the model that it serves and why, and all models' confusion matrix."""
    _print(console, "Macro-F1 by round on each device's own held-out windows, in percent", _scores(summaries))
    _print(console, "The model that each device serves, scored on its own held-out windows", _models(summaries))
    served = {device: summary["model"] for device, summary in summaries.items() if summary["model"]}
    for device, model in served.items():
        parity, compared = model["parity"], summaries[device]["compared"] or {}
        line(console, f"{device} serves the {name_of(model)}. {compared.get('why') or 'It is the only one.'}")
        agreement = f"the same class on {100 * parity['argmax_agreement']:.1f} % of {parity['windows']} windows"
        line(
            console,
            f"    {model['path']}\n    compared with torch: |Δ logits| {parity['max_abs_diff']:.1e}, {agreement}",
        )
    known = [model for model in served.values() if model.get("confusion")]
    if known:
        windows = sum(int(np.sum(model["confusion"])) for model in known)
        _print(console, f"True class (row) and answer (column) on all {windows} held-out windows", _confusion(known))


def compare(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the scores of each federation, device by device, and what they cost."""
    table = _table("", right=[outcome.title for outcome in outcomes])
    devices = list(outcomes[0].summaries)
    for device in devices:
        used = [outcome.summaries[device]["model"] or {} for outcome in outcomes]
        table.add_row(device, *(_percent(model.get("score")) for model in used), end_section=device == devices[-1])
    table.add_row("seconds", *(f"{outcome.seconds:.1f}" for outcome in outcomes))
    sizes = [outcome.sent_bytes for outcome in outcomes]
    table.add_row("MB sent by all devices", *("–" if sent is None else f"{sent / 1e6:.2f}" for sent in sizes))
    table.add_row("MB of versions, for each device", *(f"{outcome.version_bytes / 1e6:.2f}" for outcome in outcomes))
    _print(console, "Macro-F1 of the model that each device uses, in percent, and what it cost", table)


def stored(console: Console, database: Path, federation: str) -> list[str]:
    """Print how much of devices' learning the server's database holds, and return what isn't a sum of all devices."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        counted = (
            connection.execute(f"SELECT count(*) {query}", (federation,)).fetchone()[0] for query in QUERIES.values()
        )
        found = dict(zip(QUERIES, counted, strict=True))
    rows = ", ".join(f"{kind} {count}" for kind, count in found.items())
    line(console, f"{federation}, rows in the server's database: {rows}.")
    return [f"{federation}: the server has {kind} of single devices" for kind in list(QUERIES)[1:] if found[kind]]


def _table(*left: str, right: Sequence[str]) -> Table:
    table = Table(*left)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _print(console: Console, title: str, table: Table) -> None:
    console.print(title, style="italic", highlight=False)  # the table's own title would be wrapped to its width
    console.print(table)


def _scores(summaries: Summaries) -> Table:
    numbers = sorted({row["round"] for summary in summaries.values() for row in summary["rounds"]})
    numbers = numbers if len(numbers) <= SHOWN_ROUNDS else [*numbers[:1], *numbers[1 - SHOWN_ROUNDS :]]
    table = _table("device", "model", right=[f"{number}" for number in numbers])
    for device, summary in summaries.items():
        by_round = {row["round"]: row for row in summary["rounds"]}
        for heading, name, when in ((device, "received", "before"), ("", "trained", "after")):
            scores = [by_round.get(number, {}).get(f"score_{when}") for number in numbers]
            table.add_row(heading, name, *map(_percent, scores), end_section=when == "after")
    return table


def _models(summaries: Summaries) -> Table:
    table = _table("device", "model", right=("macro-F1", "weakest class"))
    for device, summary in summaries.items():
        model = summary["model"]
        name = f"{model['source']}, round {model['round']}" if model else "none"
        table.add_row(device, name, _percent(model and model["score"]), (model and weakest(model)) or "–")
    return table


def _confusion(models: Sequence[dict[str, Any]]) -> Table:
    labels, matrix = models[0]["labels"], np.sum([model["confusion"] for model in models], axis=0)
    table = Table("", box=box.SIMPLE_HEAD, padding=0)
    for label in labels:
        table.add_column(label, justify="right", no_wrap=True)
    for row, label in enumerate(labels):
        cells = [Text(str(count), "bold green" if row == column else "red") for column, count in enumerate(matrix[row])]
        table.add_row(label, *(cell if cell.plain != "0" else "·" for cell in cells))
    return table


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"
