"""Writes a value as TOML writes it within a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def inline_toml(value: Any) -> str:
    """Write a text, number, truth value, list or table on one line; TOML has nothing for None."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {inline_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(inline_toml, value)) + "]"
    if isinstance(value, str) and "\\" in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


def toml_key(key: str) -> str:
    """Write a key, in quotes where it needs them."""
    return key if _BARE.fullmatch(key) else json.dumps(key)


def toml_tables(tree: Mapping[str, Any]) -> str:
    """Write a tree whose tables at the top have a heading each; None and empty tables are left out."""
    plain = {key: value for key, value in tree.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{toml_key(key)} = {inline_toml(value)}" for key, value in plain.items()]
    for name, table in tree.items():
        if isinstance(table, Mapping) and table:
            rows = (f"{toml_key(key)} = {inline_toml(value)}" for key, value in table.items() if value is not None)
            lines += ["", f"[{toml_key(name)}]", *rows]
    return "\n".join(lines).strip()
