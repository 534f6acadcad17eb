"""Presets in TOML: entries that share parts, and families whose members differ in the cells of a matrix.

    paper = "Tan et al. 2022"

    [part.training.options]
    lr = 0.01

    [[preset]]
    name = "tan2022-{data}-{ways}"
    matrix = [[{ data = "mnist" }, { data = "femnist" }], [{ ways = 3 }, { ways = 4 }]]
    parts = ["training"]
    options = { data = "{data}", set = ["partition.ways={ways}"] }

A family has one preset for each combination of a cell from each row of its matrix, the last row varying fastest. What
the cells name stands for `{name}` in any text; a text that is nothing else becomes the value itself. Keys of an entry
are laid over those of its parts, in their order: sections are merged, and lists follow one another.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from sim.presets.preset import Preset, Reported

Entry = dict[str, Any]
PLACE = re.compile(r"\{(\w+)\}")


def read_presets(text: str) -> dict[str, Preset]:
    """Return the presets of a file by name, in its order."""
    document = tomllib.loads(text)
    parts = document.get("part", {})
    entries = (member for entry in document["preset"] for member in _family(entry, parts))
    return {entry.pop("name"): _preset({"paper": document["paper"], **entry}) for entry in entries}


def _family(entry: Entry, parts: Mapping[str, Entry]) -> Iterator[Entry]:
    for cells in product(*entry.get("matrix", [])):
        values = {name: value for cell in cells for name, value in cell.items()}
        merged = _with_parts(entry, parts, values)
        yield _filled(merged, values)


def _with_parts(entry: Entry, parts: Mapping[str, Entry], values: Entry) -> Entry:
    """Lay an entry over its parts, and those over theirs."""
    merged: Entry = {}
    for name in entry.get("parts", []):
        merged = _laid_over(_with_parts(parts[_filled(name, values)], parts, values), merged)
    return _laid_over({key: value for key, value in entry.items() if key not in ("parts", "matrix")}, merged)


def _laid_over(upper: Entry, lower: Entry) -> Entry:
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _laid_over(value, below)
        elif isinstance(value, list) and isinstance(below, list):
            merged[key] = [*below, *value]
        else:
            merged[key] = value
    return merged


def _filled(value: Any, values: Entry) -> Any:
    """Put the values of a family's cells where they are named."""
    if isinstance(value, dict):
        return {_filled(key, values): _filled(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if not isinstance(value, str):
        return value
    whole = PLACE.fullmatch(value)
    return values[whole[1]] if whole else PLACE.sub(lambda place: str(values[place[1]]), value)


def _preset(fields: Entry) -> Preset:
    reported = fields.pop("reported", None)
    departures = tuple(fields.pop("departures", ()))
    return Preset(**fields, departures=departures, reported=None if reported is None else Reported(**reported))
