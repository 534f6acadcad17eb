"""Cells of a table that takes hours, a line of JSON each: a stopped run goes on with those that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


class CellFile:
    """`cells.jsonl` in a folder; `key` tells cells apart."""

    def __init__(self, folder: Path, key: Callable[[Cell], Hashable]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._key = folder / "cells.jsonl", key
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.done: list[Cell] = [json.loads(line) for line in lines]

    def missing(self, cells: Iterator[Cell]) -> list[Cell]:
        """Return those that are not done."""
        known = {self._key(cell) for cell in self.done}
        return [cell for cell in cells if self._key(cell) not in known]

    def add(self, cell: Cell) -> None:
        """Write a finished cell, and print it."""
        line = json.dumps(cell)
        with self._path.open("a") as file:
            file.write(line + "\n")
        self.done.append(cell)
        print(line, flush=True)
