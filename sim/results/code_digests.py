"""Digests of the classes that a run computes with: a run is not resumed with a method or a network that was edited.

A digest is of compiled code, so comments, docstrings and formatting don't count, and a notebook's cells need no source
file. It covers what the class's code uses of its own module: functions, classes and plain constants. Other modules are
not followed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from gaitway.own_packages import is_own_module

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "typing_extensions"}) - {"__main__"}


def code_digests(classes: Iterable[type]) -> dict[str, str]:
    """Return the digest of each class, and of its bases outside Gaitway and the libraries, by its name."""
    found = {_name(kind): _digest(kind) for listed in classes for kind in _counted(listed)}
    return dict(sorted(found.items()))


def _counted(listed: type) -> Iterator[type]:
    """Yield the class, and those of its bases that no version of a package stands for."""
    for kind in listed.__mro__:
        top = kind.__module__.partition(".")[0]
        if kind is listed or not (top in _LIBRARIES or is_own_module(kind.__module__)):
            yield kind


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _digest(kind: type) -> str:
    parts: dict[str, list[str]] = {}
    _read(kind, kind.__module__, parts)
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _read(thing: Any, module: str, parts: dict[str, list[str]]) -> None:
    """Take down a class or a function of this module, and what it uses of it."""
    if not isinstance(thing, type | FunctionType) or thing.__module__ != module or _name(thing) in parts:
        return
    lines = parts[_name(thing)] = []
    if isinstance(thing, type):
        for name, value in vars(thing).items():
            _read_attribute(name, value, module, lines, parts)
        for base in thing.__bases__:
            _read(base, module, parts)
    else:
        _read_function(thing, module, lines, parts)


def _read_attribute(name: str, value: Any, module: str, lines: list[str], parts: dict[str, list[str]]) -> None:
    # of a static or class method, a property, and a cached property
    inner = next((found for key in ("__func__", "fget", "func") if (found := getattr(value, key, None))), value)
    if isinstance(inner, type):
        _read(inner, module, parts)
    elif isinstance(inner, FunctionType):
        if inner.__code__.co_filename != "<string>":  # which a dataclass makes of its fields
            lines.append(name)
            _read_function(inner, module, lines, parts)
    elif not name.startswith("__") and _is_plain(inner):
        lines.append(f"{name}={_plain(inner)}")


def _read_function(function: FunctionType, module: str, lines: list[str], parts: dict[str, list[str]]) -> None:
    lines += _code_lines(function.__code__, function.__doc__)
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    lines += [_plain(value) for value in defaults if _is_plain(value)]
    used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        used[name] = cell.cell_contents
    used["__wrapped__"] = getattr(function, "__wrapped__", None)
    for name, value in sorted(used.items()):
        if _is_plain(value) and not name.startswith("__"):
            lines.append(f"{name}={_plain(value)}")
        _read(value, module, parts)


def _code_lines(code: CodeType, documentation: str | None) -> list[str]:
    lines = [code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars))]
    for value in code.co_consts:
        if isinstance(value, CodeType):
            first = value.co_consts[0] if value.co_consts else None
            lines += _code_lines(value, first if isinstance(first, str) else None)
        elif value != documentation or value is None:
            lines.append(_plain(value))
    return lines


def _names(code: CodeType) -> set[str]:
    inner = (_names(value) for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*inner)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _plain(value: Any) -> str:
    """Write a constant the same way in every process: a set has another order in each."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)
