"""What the demo shows: the live state, and the tables at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from processes import DemoError
from rest import Snapshot

STYLES = {"training": "cyan", "uploading": "magenta", "finished": "green", "offline": "red"}


@contextmanager
def live(console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """Give a function that shows a snapshot: in place on a terminal, else one line for each change."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as display:
            yield lambda snapshot: display.update(_panel(snapshot))
    else:
        seen: list[str] = []

        def line(snapshot: Snapshot) -> None:
            text = _line(snapshot)
            if text not in seen[-1:]:
                seen.append(text)
                console.print(f"{snapshot.elapsed_s:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

        yield line


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
    """Print the rounds, each device's scores before and after, and the exported models."""
    console.print(_rounds(rounds))
    console.print(_scores(summaries))
    console.print(
        "Before and after: torch, in batches. Adopted: the exported file, which sees each window alone.", style="dim"
    )
    console.print("Each device's exported model (ONNX), and its largest difference to torch:", style="italic")
    for device, summary in summaries.items():
        console.print(f"  {device}: {_model(summary['model'])}", soft_wrap=True, highlight=False, markup=False)


def _panel(snapshot: Snapshot) -> Group:
    table = Table(box=None, padding=(0, 2))
    for heading in ("device", "state", "examples", ""):
        table.add_column(heading)
    for device in snapshot.devices:
        state = Text(device.state, STYLES.get(device.state, ""))
        table.add_row(device.name, state, str(device.examples), device.detail[:60])
    title = Text(f"{snapshot.elapsed_s:5.1f} s  {snapshot.headline}", "bold")
    return Group(title, table)


def _line(snapshot: Snapshot) -> str:
    devices = ", ".join(f"{device.name} {device.state}" for device in snapshot.devices) or "no device yet"
    return f"{snapshot.headline} | {devices}"


def _rounds(rounds: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Rounds", title_justify="left")
    for heading in ("round", "phase", "updates", "seconds"):
        table.add_column(heading, justify="right")
    for one in rounds:
        seconds = "" if one["closed_at"] is None else f"{one['closed_at'] - one['opened_at']:.1f}"
        table.add_row(str(one["number"]), one["phase"], f"{one['received']} of {one['invited']}", seconds)
    return table


def _scores(summaries: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Macro-F1 on each device's own held-out windows, in percent", title_justify="left")
    table.add_column("device")
    last = max((len(summary["rounds"]) for summary in summaries.values()), default=0)
    for number in range(1, last + 1):
        table.add_column(f"round {number}\nbefore → after", justify="right")
    table.add_column("adopted\nmodel", justify="right")
    for device, summary in summaries.items():
        cells = [f"{_percent(r['macro_f1_before'])} → {_percent(r['macro_f1_after'])}" for r in summary["rounds"]]
        cells += [""] * (last - len(cells))
        table.add_row(device, *cells, _percent((summary["model"] or {}).get("macro_f1")))
    return table


def _model(model: dict[str, Any] | None) -> str:
    if model is None:
        return "none; the agent's log says why"
    parity = model["parity"]
    agreement = f"the same class on {100 * parity['argmax_agreement']:.1f} % of {parity['windows']} windows"
    difference = f"|Δ logits| {parity['max_abs_diff']:.1e}"
    return f"{model['source']} model of round {model['round']}, {difference}, {agreement}\n    {model['path']}"


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"
