"""From `--over` and `--when` to cells: one combination of options, its name, and the arguments of its run."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gaitway.errors import closest
from sim.errors import SettingsError

SELF_EXPLAINING = frozenset({"data", "method", "model", "preset"})
"""Options whose values stand alone in a cell's name."""
MAX_NAME = 120
MAX_CELLS = 10_000

Options = Mapping[str, str]
Flags = Mapping[str, str]
"""The options of `sim run`: `clients_per_round` to `--clients-per-round`."""


class SweepAxis(NamedTuple):
    """An option of `sim run`, or a dotted key of its `--set`, and the values that it takes one after the other."""

    key: str
    values: tuple[str, ...]


class Condition(NamedTuple):
    """An axis that only those cells have in which another one takes one of some values."""

    when: SweepAxis
    axis: SweepAxis


@dataclass(frozen=True)
class Cell:
    """One run: a readable name, what it was combined from, and the arguments of `sim run` but for `--out`."""

    name: str
    options: Options
    arguments: tuple[str, ...]


def axis(text: str) -> SweepAxis:
    """Read `key=value,value…`; a comma within brackets or quotes belongs to its value.

    Raises:
        SettingsError: for text without key or values, or with a value twice.
    """
    key, equals, rest = text.partition("=")
    values = tuple(re.findall(r"""((?:\[[^\]]*\]|\{[^}]*\}|"[^"]*"|[^,])+)""", rest))
    if not (key.strip() and equals and values):
        raise SettingsError(f"{text!r}: expected key=value,value… such as seed=0,1,2 or method.mu=0.01,0.1")
    if doubled := [value for value, count in Counter(values).items() if count > 1]:
        raise SettingsError(f"{text!r} has {', '.join(doubled)} twice; every value makes cells of its own")
    return SweepAxis(key.strip().replace("-", "_"), values)


def condition(text: str) -> Condition:
    """Read `key=value,…:key=value,…`; raises SettingsError."""
    when, colon, then = text.partition(":")
    if not colon:
        raise SettingsError(f"{text!r}: expected CONDITION:OPTION such as method=fedali:model=har_cnn_alp")
    return Condition(axis(when), axis(then))


def cells(axes: Sequence[SweepAxis], conditions: Sequence[Condition], base: Sequence[str], flags: Flags) -> list[Cell]:
    """Combine all axes, the first one varying slowest; every cell's arguments begin with `base`.

    Raises:
        SettingsError: for a key that is unknown or set twice, a condition that never holds, or too many cells.
    """
    combined: list[Options] = [{}]
    for sweep_axis in axes:
        combined = [grown for options in combined for grown in _grown(options, sweep_axis)]
        if len(combined) > MAX_CELLS:
            raise SettingsError(f"these axes make more than {MAX_CELLS} cells; sweep over fewer values")
    for condition in conditions:
        combined = list(_where(condition, combined))
    made = [Cell(_name(options), options, (*base, *_arguments(options, flags))) for options in combined]
    return _named_apart(made)


def _grown(options: Options, sweep_axis: SweepAxis) -> Iterator[Options]:
    if sweep_axis.key in options:
        raise SettingsError(f"{sweep_axis.key} is set twice in the cell {_name(options)}; give it in one place")
    return ({**options, sweep_axis.key: value} for value in sweep_axis.values)


def _where(condition: Condition, combined: Sequence[Options]) -> Iterator[Options]:
    key, values = condition.when
    places = {options[key] for options in combined if key in options}
    if strange := sorted(set(values) - places):
        raise SettingsError(
            f"--when {key}={','.join(values)}: no cell has {key}={strange[0]}; "
            + (f"the sweep goes over {', '.join(sorted(places))}" if places else f"sweep over it: --over {key}=…")
        )
    for options in combined:
        yield from _grown(options, condition.axis) if options.get(key) in values else [options]


def _arguments(options: Options, flags: Flags) -> Iterator[str]:
    for key, value in options.items():
        if "." in key:
            yield from ("--set", f"{key}={value}")
        elif key in flags:
            yield from (flags[key], value)
        else:
            raise SettingsError(_unknown(key, flags))


def _unknown(key: str, flags: Flags) -> str:
    near = closest(key, flags)
    hint = f"did you mean {near}?" if near else "a method's hyper-parameter is method.KEY, a model's option model.KEY"
    return f"`sim run` has no option {key!r}; {hint}"


def _name(options: Options) -> str:
    """Name a cell by its own options alone, so that it keeps its name when the sweep grows."""
    words = [
        value if key in SELF_EXPLAINING else f"{key.removeprefix('method.')}={value}" for key, value in options.items()
    ]
    return re.sub(r"[^\w.,=+-]+", "-", ",".join(words)).lstrip(".-") or "run"


def _named_apart(made: Sequence[Cell]) -> list[Cell]:
    """Add a digest to the names that are too long for a directory, or alike once they are made fit for one."""
    often = Counter(cell.name for cell in made)

    def fit(cell: Cell) -> str:
        if often[cell.name] == 1 and len(cell.name) <= MAX_NAME:
            return cell.name
        digest = hashlib.sha256("\0".join(cell.arguments).encode()).hexdigest()[:8]
        return f"{cell.name[:MAX_NAME]}-{digest}"

    return [Cell(fit(cell), cell.options, cell.arguments) for cell in made]
