"""What the demo shows: the live state, and the tables at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edge_agent.serving.model_registry import name_of
from exchange import Outcome
from gaitway.progress import PeriodicLines
from gaitway.terminal import Console
from processes import DemoError
from rest import Device, Snapshot
from verdict import weakest

STYLES = {"training": "cyan", "uploading": "magenta", "finished": "green", "offline": "red"}
SHOWN_ROUNDS = 5
"""Where there were more, the first and the last are shown: what 80 columns hold."""


@contextmanager
def live(console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """Give a function that shows a snapshot: in place on a terminal, else a line for each change and now and then."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as display:
            yield lambda snapshot: display.update(_panel(snapshot))
    else:
        last: list[Snapshot] = []

        def print_line(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def line(snapshot: Snapshot) -> None:
            if not last or _line(snapshot) != _line(last[0]):
                print_line(_timed(snapshot))
            last[:] = [snapshot]

        unchanged = PeriodicLines(print_line, lambda: map(_timed, last))
        unchanged.start()
        try:
            yield line
        finally:
            unchanged.stop()


def load_summaries(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Read what each agent left.

    Raises:
        DemoError: if one left nothing.
    """
    found = {}
    for device, folder in folders.items():
        path = folder / "summary.json"
        if not path.is_file():
            raise DemoError(f"{device} left no {path}; see its log")
        found[device] = json.loads(path.read_text())
    return found


def results(console: Console, rounds: Sequence[dict[str, Any]], summaries: dict[str, dict[str, Any]]) -> None:
    """Print the rounds, each device's scores, the adopted models and what they take for what."""
    _print(console, "Rounds", _rounds(rounds))
    _print(console, "Macro-F1 by round on each device's own held-out windows, in percent", _scores(summaries))
    _print(console, "The model that each device serves, scored on its own held-out windows", _models(summaries))
    for line in served(summaries):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    models = {device: summary["model"] for device, summary in summaries.items() if summary["model"]}
    console.print("Their ONNX files, and the largest difference to torch:", style="italic")
    for device, model in models.items():
        console.print(f"  {device}: {_exported(model)}", soft_wrap=True, highlight=False, markup=False)
    known = [model for model in models.values() if model.get("confusion")]
    if known:
        windows = sum(int(np.sum(model["confusion"])) for model in known)
        _print(console, f"True class (row) and answer (column) on all {windows} held-out windows", _confusion(known))


def served(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say in one line for each device which model serves, and why."""
    lines = []
    for device, summary in summaries.items():
        model, compared = summary["model"], summary["compared"] or {}
        if model:
            why = compared.get("why") or "it is the only one"
            lines.append(f"{device} serves the {name_of(model)}. {why}")
    return lines


def beside(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print what each federation came to, device by device, and what it took."""
    table = Table("", *(found.title for found in outcomes))
    for column in table.columns[1:]:
        column.justify = "right"
    devices = list(outcomes[0].scores)
    for device in devices:
        scores = [_percent(found.scores.get(device)) for found in outcomes]
        table.add_row(device, *scores, end_section=device == devices[-1])
    table.add_row("seconds", *(f"{found.seconds:.1f}" for found in outcomes))
    table.add_row("MB sent by all devices", *(_megabytes(found.sent_bytes) for found in outcomes))
    table.add_row("MB of versions, for each", *(f"{found.version_bytes / 1e6:.2f}" for found in outcomes))
    _print(console, "Macro-F1 of the model that each device uses, in percent, and what it took", table)


def _print(console: Console, title: str, table: Table) -> None:
    # not the table's own title, which would be wrapped to the table's width
    console.print(title, style="italic", highlight=False)
    console.print(table)


def _panel(snapshot: Snapshot) -> Group:
    table = Table(box=None, padding=(0, 2))
    for heading in ("device", "state", "examples", ""):
        table.add_column(heading)
    for device in snapshot.devices:
        state = Text(device.state, STYLES.get(device.state, ""))
        table.add_row(device.name, state, str(device.examples), device.detail[:60])
    title = Text(f"{snapshot.elapsed_s:5.1f} s  {snapshot.headline}", "bold")
    return Group(title, table)


def _timed(snapshot: Snapshot) -> str:
    return f"{snapshot.elapsed_s:6.1f} s  {_line(snapshot)}"


def _line(snapshot: Snapshot) -> str:
    devices = ", ".join(f"{device.name} {_doing(device, snapshot)}" for device in snapshot.devices) or "no device yet"
    return f"{snapshot.headline} | {devices}"


def _doing(device: Device, snapshot: Snapshot) -> str:
    """Say what a device does; after the last round it still exports, checks and compares its models."""
    is_choosing = snapshot.status == "finished" and device.state not in ("finished", "offline")
    return device.detail or "choosing its model" if is_choosing else device.state


def _rounds(rounds: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    for heading in ("round", "phase", "updates", "seconds"):
        table.add_column(heading, justify="right")
    for one in rounds:
        seconds = "" if one["closed_at"] is None else f"{one['closed_at'] - one['opened_at']:.1f}"
        table.add_row(str(one["number"]), one["phase"], f"{one['received']} of {one['invited']}", seconds)
    return table


def _scores(summaries: dict[str, dict[str, Any]]) -> Table:
    table = Table("device", "model")
    numbers = sorted({one["round"] for summary in summaries.values() for one in summary["rounds"]})
    numbers = numbers if len(numbers) <= SHOWN_ROUNDS else [*numbers[:1], *numbers[1 - SHOWN_ROUNDS :]]
    for number in numbers:
        table.add_column(f"{number}", justify="right")
    for device, summary in summaries.items():
        by_round = {one["round"]: one for one in summary["rounds"]}
        for first, name, when in ((device, "received", "before"), ("", "trained", "after")):
            scores = [by_round.get(number, {}).get(f"score_{when}") for number in numbers]
            table.add_row(first, name, *map(_percent, scores), end_section=when == "after")
    return table


def _models(summaries: dict[str, dict[str, Any]]) -> Table:
    table = Table("device", "model")
    for heading in ("macro-F1", "weakest class"):
        table.add_column(heading, justify="right")
    for device, summary in summaries.items():
        model = summary["model"]
        if model is None:
            table.add_row(device, "none", "–", "–")
            continue
        name = f"{model['source']}, round {model['round']}"
        poorest = weakest(model)
        table.add_row(device, name, _percent(model["score"]), "–" if poorest is None else str(poorest))
    return table


def _exported(model: dict[str, Any]) -> str:
    parity = model["parity"]
    agreement = f"the same class on {100 * parity['argmax_agreement']:.1f} % of {parity['windows']} windows"
    return f"|Δ logits| {parity['max_abs_diff']:.1e}, {agreement}\n    {model['path']}"


def _confusion(models: Sequence[dict[str, Any]]) -> Table:
    """Sum the models' confusion matrices to a table of counts."""
    labels, matrix = models[0]["labels"], np.sum([model["confusion"] for model in models], axis=0)
    table = Table("", box=box.SIMPLE_HEAD, padding=0)
    for label in labels:
        table.add_column(label, justify="right", no_wrap=True)
    for row, label in enumerate(labels):
        table.add_row(label, *(_count(int(count), right=row == column) for column, count in enumerate(matrix[row])))
    return table


def _count(count: int, *, right: bool) -> Text:
    return Text(str(count) if count else "·", "bold green" if right else "red" if count else "dim")


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:.2f}"


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"
