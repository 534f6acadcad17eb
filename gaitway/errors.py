"""The base class of all errors that our packages raise on purpose, the phrases they share, and exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol, get_args

MAX_SHOWN_INPUT = 200
"""Characters of a wrong value that a message shows."""
_PLAIN = (str, int, float, list, tuple, type(None))
_SAME_CLASS, _BEGINNING = 0.75, 4  # lying and walking: 0.67, upstairs and downstairs: 0.67; walk and walking: 4 letters
_COMPARED = 200  # characters of a name: comparing takes quadratic time, and names come from outside


class GaitwayError(Exception):
    """Says what was wrong, what was expected, and what to do; any other exception is a bug."""


class SettingsError(GaitwayError):
    """A setting, option or name that is unknown or has an invalid value; the base of every `SettingsError`."""


class Invalid(Protocol):
    """A `pydantic.ValidationError`; a protocol, because this package needs the standard library alone."""

    def errors(self, *, include_url: bool, include_context: bool) -> Sequence[Mapping[str, Any]]:
        """List what is wrong, each with `loc`, `msg`, `type` and `input`."""
        ...


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None if none is similar."""
    names = list(known)
    same = next((candidate for candidate in names if candidate.lower() == name[:_COMPARED].lower()), None)
    near = [same] if same else difflib.get_close_matches(name[:_COMPARED], names, n=1, cutoff=0.5)
    return near[0] if near else None


def closest_class(name: str, known: Iterable[str]) -> str | None:
    """Return the class that `name` misspells, or None; stricter than `closest`, as classes look alike (lying, walking).

    Each word of the name must nearly equal, or begin, one of the class's words, in the same order.
    """
    words = _words(name[:_COMPARED])
    near = ((candidate, _words(candidate)) for candidate in known)
    return next(
        (candidate for candidate, others in near if words and len(words) == len(others) and _alike(words, others)), None
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name most similar to `name`, if any, and list all of them in the given order."""
    names = list(known)
    return _suggestion(closest(name, names), names)


def unknown_class(name: str, known: Iterable[str]) -> str:
    """Suggest the intended class if `name` nearly matches one, and list all of them in the given order."""
    names = list(known)
    return _suggestion(closest_class(name, names), names)


def _suggestion(near: str | None, names: Sequence[str]) -> str:
    listed = f"Known: {', '.join(names)}" if names else "There are none"
    return listed if near is None else f"did you mean {near!r}? {listed}"


def _words(name: str) -> list[str]:
    return name.lower().replace("_", " ").replace("-", " ").split()


def _alike(words: Sequence[str], others: Sequence[str]) -> bool:
    pairs = list(zip(words, others, strict=True))
    begins = all(min(len(a), len(b)) >= _BEGINNING and (a.startswith(b) or b.startswith(a)) for a, b in pairs)
    return begins or all(difflib.SequenceMatcher(None, a, b).ratio() >= _SAME_CLASS for a, b in pairs)


def first_problem(error: Invalid, *, input_shown: bool = False, model: object = None) -> str:
    """Say which field is wrong and why; `input_shown` adds the received value, unless it is a `SecretStr`.

    `model` is the validated class if a person wrote the input: the message then uses plain terms, and suggests the
    nearest known key for an unknown one.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))[:100]
    words = first["msg"].removeprefix("Value error, ")
    if model is not None:
        words = _plain_words(first, words, model)
    # a whole section isn't shown: it is long, and its other keys, or a misspelt one's value, may be secret
    shown = input_shown and first["type"] not in ("missing", "extra_forbidden") and isinstance(first["input"], _PLAIN)
    shown_input = f" (got {repr(first['input'])[:MAX_SHOWN_INPUT]})" if shown else ""
    return f"{where}: {words}{shown_input}" if where else f"{words}{shown_input}"


_PLAINLY = {
    "Input should be ": "expected ",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "a section with keys",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
}
"""Pydantic's term for a value, and the plain one."""


def _plain_words(problem: Mapping[str, Any], words: str, model: object) -> str:
    """Say in plain terms what pydantic found wrong with a value."""
    if problem["type"] == "extra_forbidden":
        *path, name = problem["loc"]
        return f"there is no such key; {did_you_mean(str(name), _keys_at(model, path))}"
    if problem["type"] == "missing":
        return "it is missing"
    words = words.partition(", unable to parse")[0].partition(", got a number")[0]
    words = words.partition(" or instance of")[0].partition(" or object to extract")[0]
    for wording, plain in _PLAINLY.items():
        words = words.replace(wording, plain)
    return words


def _keys_at(model: object, path: Sequence[object]) -> list[str]:
    """Return the keys of a pydantic model's section; [] if the path isn't a section."""
    fields: Mapping[str, Any] | None = getattr(model, "model_fields", None)
    if fields is None:  # a union or a list of sections
        parts = (_keys_at(part, path) for part in get_args(model))
        return next((found for found in parts if found), [])
    names = {field.alias or name: field for name, field in fields.items()}
    keys = [key for key in path if isinstance(key, str)]
    if not keys:
        return list(names)
    return _keys_at(names[keys[0]].annotation, keys[1:]) if keys[0] in names else []


class ExitCode(IntEnum):
    """The meaning of an exit status; others come from the shell or from a signal (128 plus its number)."""

    DONE = 0
    """Also for a server, broker or device stopped by Ctrl-C or SIGTERM."""
    FAILED = 1
    """The command ran with a bad outcome: a check failed, a gate rejected a model, a server couldn't be reached."""
    REFUSED = 2
    """Nothing was done: an option, setting or file is invalid, and the message says what is expected."""
    PENDING = 3
    """An operator must approve first; run the same command again afterwards to continue."""
    INTERRUPTED = 130
    """Ctrl-C; run the same command again to continue, if the work can be resumed."""
