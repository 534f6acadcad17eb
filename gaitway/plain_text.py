"""Text for people that comes from outside: valid Unicode in NFC on one line, which every screen and store takes.

Also labels as people read them (the phone's app has the same words, generated from here), and values as TOML.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

MAX_LABEL = 100
"""Characters of a class's name, an activity's or a number's."""
MAX_DEPTH = 32
"""Of values in values."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They let a text read otherwise than it is (Trojan Source, Boucher and Anderson, 2023)."""


def cleaned(text: str) -> str:
    """Return a text in NFC, with a blank for every control character and U+FFFD for what is no character.

    For what programs say, such as errors: better shown with a blank than refused.
    """
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", "".join(_shown(char) for char in text))


def checked(text: str) -> str:
    """Return a text that a person or a file gave in NFC.

    Raises:
        ValueError: naming the first character that is a control character or no character.
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
    """Return values of JSON whose every text, keys too, is as `checked` returns it.

    Raises:
        ValueError: for a text that `checked` refuses, or values that lie too deep.
    """
    if isinstance(value, str):
        return checked(value)
    if not depth:
        raise ValueError(f"values lie in one another deeper than {MAX_DEPTH}")
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
"""Names that data sets publish, where people would not guess them."""


def label_text(label: str) -> str:
    """Return a label as people read it: stairs_up is 'stairs up', and so is MotionSense's ups."""
    if label in SPELLED_OUT:
        return SPELLED_OUT[label]
    words = label.replace("_", " ")
    return words.lower() if len(words) > 3 and words == words.upper() else words


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
