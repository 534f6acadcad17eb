"""The command `presets`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich import box
from rich.table import Table

from sim.cli.terminal import console
from sim.presets import PRESETS


def presets() -> None:
    """List the named starting points by paper: clients, rounds, and the data that each needs."""
    for table in _tables():
        console.print(table)
    for name, preset in PRESETS.items():
        if preset.pretraining:
            model = preset.options_for(preset.options["method"])["model"]
            console.print(f"{name}: first {preset.pretraining_command(model)}, then --init FILE")
    console.print("The method is yours: sim run --preset NAME --method METHOD --data-root FOLDER --out DIR")


def _tables() -> Iterator[Table]:
    for paper, entries in groupby(PRESETS.items(), key=lambda entry: entry[1].paper):
        table = Table(title=paper, box=box.SIMPLE, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
        table.add_column("preset", no_wrap=True)
        table.add_column("what it is")
        for column in ("clients", "rounds"):
            table.add_column(column, justify="right")
        table.add_column("needs")
        for name, preset in entries:
            table.add_row(name, preset.about, f"{preset.clients}", f"{preset.rounds}", preset.needs)
        yield table
