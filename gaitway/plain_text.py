"""Validation of displayed text from outside: valid Unicode in NFC on one line, safe for every screen and store.

Also readable labels (the phone app's are generated from these), and values as TOML.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

MAX_LABEL = 100
"""Characters in the name of a class, an activity or a number."""
MAX_DEPTH = 32
"""Nesting depth of values."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that make text look different from what it is (Trojan Source, Boucher and Anderson, 2023)."""


def cleaned(text: str) -> str:
    """Return text in NFC, with a blank for every control character and U+FFFD for invalid characters.

    For program output such as errors, which is better shown with a blank than rejected.
    """
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", "".join(_shown(char) for char in text))


def checked(text: str) -> str:
    """Return text from a person or a file in NFC.

    Raises:
        ValueError: naming the first control character or invalid character.
    """
    if text.isascii() and text.isprintable():
        return text
    for place, char in enumerate(text):
        if _shown(char) != char:
            raise ValueError(
                f"character {place + 1} is U+{ord(char):04X}; expected text without control characters, on one line"
            )
    return unicodedata.normalize("NFC", text)


def checked_values(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return JSON values with every text, including keys, as `checked` returns it.

    Raises:
        ValueError: for text that `checked` rejects, or values that are nested too deeply.
    """
    if isinstance(value, str):
        return checked(value)
    if not depth:
        raise ValueError(f"values are nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {checked_values(key, depth - 1): checked_values(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(checked_values(inner, depth - 1) for inner in value)
    return value


def _shown(char: str) -> str:
    if char in _REORDERING:
        return " "
    kind = unicodedata.category(char)
    return " " if kind in ("Cc", "Zl", "Zp") else _REPLACEMENT if kind == "Cs" else char


SPELLED_OUT = {
    "dws": "stairs down",
    "ups": "stairs up",
    "wlk": "walking",
    "jog": "jogging",
    "sit": "sitting",
    "std": "standing",
    "climbingup": "climbing up",
    "climbingdown": "climbing down",
}
"""Names from published data sets that people wouldn't guess."""


def label_text(label: str) -> str:
    """Return a readable label: 'stairs up' for stairs_up, and for MotionSense's ups."""
    if label in SPELLED_OUT:
        return SPELLED_OUT[label]
    words = label.replace("_", " ")
    return words.lower() if len(words) > 3 and words == words.upper() else words


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def inline_toml(value: Any) -> str:
    """Write a string, number, boolean, list or table on one line; TOML has no None."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {inline_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(inline_toml, value)) + "]"
    if isinstance(value, str) and "\\" in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


def toml_key(key: str) -> str:
    """Write a key, quoted if necessary."""
    return key if _BARE.fullmatch(key) else json.dumps(key)


def toml_tables(tree: Mapping[str, Any]) -> str:
    """Write a tree with a heading for each top-level table; None and empty tables are left out."""
    plain = {key: value for key, value in tree.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{toml_key(key)} = {inline_toml(value)}" for key, value in plain.items()]
    for name, table in tree.items():
        if isinstance(table, Mapping) and table:
            rows = (f"{toml_key(key)} = {inline_toml(value)}" for key, value in table.items() if value is not None)
            lines += ["", f"[{toml_key(name)}]", *rows]
    return "\n".join(lines).strip()
