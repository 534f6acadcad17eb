"""Descriptions, the tables that they describe, and the archives that these come in, changed in a few places."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from har_pipeline import PipelineError, prepare
from har_pipeline.description import read_description
from har_pipeline.description.guess.draft import draft
from tests.fuzzing import mutants
from tests.har_pipeline import layouts

DESCRIPTION: dict[str, Any] = {
    "files": r"(?P<client>p\d)/(?P<activity>[a-z]+)_(?P<session>\d+)\.csv",
    "header": True,
    "separator": ";",
    "decimal": ".",
    "trailing": ";",
    "comment": "#",
    "skip_lines": 1,
    "labels": {"names": ["walk", "sit"], "map": {"stroll": "walk"}, "ignore": ["idle"], "strict": False},
    "sensor": {"column": "kind"},
    "time": {"column": "t", "unit": "date", "format": "%Y-%m-%d %H:%M:%S.%f"},
    "acceleration": "gravity points down",
    "acc": {
        "columns": ["x", "y", 4],
        "add": ["x", "y", "z"],
        "unit": "mg",
        "scale": [1, 2, 3],
        "offset": 4,
        "matrix": [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
        "sensor": "a",
    },
    "gyro": {"columns": ["x", "y", "z"], "unit": "deg/s", "sensor": "g"},
}
PLAIN: dict[str, Any] = {
    "files": DESCRIPTION["files"],
    "labels": ["walk", "sit"],
    "time": {"column": "t", "unit": "ms"},
    "acceleration": "specific force",
    "acc": {"columns": ["x", "y", "z"]},
}
OF_DESCRIPTION = ["made", "t;x;y;z;kind;"]
OF_DESCRIPTION += [f"1970-01-01 00:00:{i / 50:09.6f};{i};2;3;{'ag'[i % 2]};" for i in range(400)]
TABLES = {
    "p1/walk_1.csv": ("\n".join(["t,x,y,z", *(f"{20 * i},{i % 7},0.5,9.8" for i in range(200))])).encode(),
    "p2/sit_2.csv": ("\n".join(["t,x,y,z", *(f"{20 * i},0,0,9.8" for i in range(150))])).encode(),
}
ARCHIVES = {
    "zip": layouts.zipped(TABLES),
    "tar": layouts.tarred(TABLES, ""),
    "tar.gz": layouts.tarred(TABLES, "gz"),
    "tar.xz": layouts.tarred(TABLES, "xz"),
    "nested.zip": layouts.zipped({"inner.zip": layouts.zipped(TABLES), "inner.tar.gz": layouts.tarred(TABLES, "gz")}),
}
TOML = b"""files = '(?P<client>p\\d)/(?P<activity>[a-z]+)_(?P<session>\\d+)\\.csv'  # every row's
labels = { names = ["walk", "sit"], map = { stroll = "walk" } }
time = { column = "t", unit = "ms" }
acceleration = "without gravity"
acc = { columns = ["x", "y", 4], scale = [1, 2e-3, -0.5] }
"""
KINDS = ("description", "toml", "table", "guess", *ARCHIVES)


class Recordings:
    """Reads what comes under a folder of its own; a case is a kind, a line feed, and its bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outcomes: Counter[str] = Counter()

    def begin(self, rng: random.Random) -> None:
        """Nothing is kept from case to case."""

    def draw(self, rng: random.Random) -> bytes:
        """Change a description, a table of it, or an archive with two tables."""
        kind = rng.choice(KINDS)
        if kind == "description":
            return f"{kind}\n".encode() + mutants.json_of(rng, DESCRIPTION)
        if kind == "toml":
            return f"{kind}\n".encode() + mutants.bytes_of(rng, TOML)
        table = rng.choice((*TABLES.values(), "\n".join(OF_DESCRIPTION).encode()))
        return f"{kind}\n".encode() + mutants.bytes_of(rng, ARCHIVES.get(kind, table))

    def feed(self, case: bytes) -> None:
        """Make windows of it, or a first description; a PipelineError is an answer."""
        name, _, content = case.partition(b"\n")
        kind = name.decode()
        path = self._folder / (f"data.{kind}" if kind in ARCHIVES else "p1/walk_1.csv")
        path.parent.mkdir(exist_ok=True)
        options = PLAIN
        if kind == "description":
            try:
                options = json.loads(content)
            except (ValueError, RecursionError):
                self._outcomes["no JSON"] += 1
                return
        path.write_bytes("\n".join(OF_DESCRIPTION).encode() if kind == "description" else content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if kind == "guess":
                    draft(path)
                elif kind == "toml":
                    read_description(path)
                else:
                    prepare("described", path if kind in ARCHIVES else path.parents[1], options=options)
            self._outcomes["read"] += 1
        except PipelineError as error:
            self._outcomes[type(error).__name__ if str(error) else "silent"] += 1
        finally:
            path.unlink()

    def close(self) -> dict[str, int]:
        """Count what became of the cases."""
        return dict(self._outcomes)
