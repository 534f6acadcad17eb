"""Pairs the sensors' stretches that belong together, by their location and recording time, never by order.

The narrowest evidence comes first: rows of one file that take turns, then files that differ in their sensor alone, then
files of one folder, then all of one session's name. On each level, what was recorded at the same time is one group. It
is taken where every sensor has one stretch at a time, or where begin and end tell which of several belong together.
What stays in doubt is given back: a window with one device's acceleration and another's rotation is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from har_pipeline.description.clocks import RESTART_S
from har_pipeline.description.samples import Part


class Piece(NamedTuple):
    """A stretch of one part of one file's session, in which the clock runs on: the key of its rows."""

    client: str
    session: str
    file: int
    restart: int
    part: Part


@dataclass
class Extent:
    """What is known of a piece: when it begins, its last sample and its latest, in s, if they are sorted, its lines."""

    begin_s: float
    last_s: float
    end_s: float
    in_order: bool
    first_line: int
    last_line: int


class StoredFile(NamedTuple):
    """A file's name, and what it shares with the files of the other sensors: its path without the sensor's word."""

    name: str
    visit: str


@dataclass
class JoinedPieces:
    """Pieces that belong together, and how much later than by their own clock they are laid."""

    name: str
    pieces: list[Piece]
    shift_s: float = 0.0


@dataclass
class Pairing:
    """The sessions of a client; pieces whose clock differs from the others', with these; and what is in doubt."""

    sessions: list[JoinedPieces] = field(default_factory=list)
    set_back: list[tuple[Piece, Piece]] = field(default_factory=list)
    doubtful: list[JoinedPieces] = field(default_factory=list)


Extents = Mapping[Piece, Extent]
Groups = Iterable[list[Piece]]


def paired(pieces: Iterable[Piece], extents: Extents, files: Sequence[StoredFile]) -> Pairing:
    """Pair the pieces of one client, name by name; an incomplete session is one that lacks a sensor."""
    by_name: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.session, []).append(piece)
    found = Pairing()
    for name, same_name in by_name.items():
        units, rest = _units(same_name, extents, files, found)
        if _is_plain(rest, extents):
            units.append(rest)  # their times never meet, or a sensor is missing, which is for others to say
        elif missing_part(rest):
            units += [[piece] for piece in rest]
        else:
            found.doubtful.append(JoinedPieces(name, rest))
        joining = _Joining(extents)
        for unit in sorted(filter(None, units), key=lambda unit: _begin_s(unit, extents)):
            joining.add(unit)
        for number, session in enumerate(joining.sessions, 1):
            found.sessions.append(JoinedPieces(name if number == 1 else f"{name} ({number})", session))
    return found


def missing_part(pieces: Iterable[Piece]) -> str:
    """Say which sensor pieces lack for windows; "" if none."""
    parts = {piece.part for piece in pieces}
    if not parts & {"acc", "linear"}:
        return "acc"
    if "gyro" not in parts:
        return "gyro"
    return "sensor that is added to its acceleration" if "linear" in parts and "added" not in parts else ""


def _units(
    pieces: list[Piece], extents: Extents, files: Sequence[StoredFile], found: Pairing
) -> tuple[list[list[Piece]], list[Piece]]:
    """Return complete groups of pieces, and those that belong to none."""
    levels: tuple[Callable[[list[Piece]], Groups], ...] = (
        lambda rest: _grouped(rest, lambda piece: piece.file, lambda piece: _lines(extents[piece])),
        lambda rest: _at_one_time(rest, lambda piece: files[piece.file].visit, extents),
        lambda rest: _at_one_time(rest, lambda piece: PurePosixPath(files[piece.file].name).parent, extents),
        lambda rest: _at_one_time(rest, lambda piece: "", extents),
    )
    units, rest = [], pieces
    for level in levels:
        left: list[Piece] = []
        for group in level(rest):
            matched, over = _resolved(group, extents, found)
            units += matched
            left += over
        rest = left
    return units, rest


def _at_one_time(pieces: list[Piece], key: Callable[[Piece], object], extents: Extents) -> Groups:
    return _grouped(pieces, key, lambda piece: (extents[piece].begin_s, extents[piece].end_s))


def _lines(extent: Extent) -> tuple[float, float]:
    return extent.first_line, extent.last_line


def _grouped(
    pieces: list[Piece], key: Callable[[Piece], object], span: Callable[[Piece], tuple[float, float]]
) -> Groups:
    """Yield the pieces that share a key and whose spans overlap, directly or through others."""
    by_key: dict[object, list[Piece]] = {}
    for piece in pieces:
        by_key.setdefault(key(piece), []).append(piece)
    for same in by_key.values():
        group, reach = list[Piece](), -np.inf
        for piece in sorted(same, key=span):
            begin, end = span(piece)
            if group and begin > reach:
                yield group
                group, reach = [], -np.inf
            group.append(piece)
            reach = max(reach, end)
        yield group


def _resolved(group: list[Piece], extents: Extents, found: Pairing) -> tuple[list[list[Piece]], list[Piece]]:
    """Divide pieces of one time into complete groups, and those of which nothing says where they belong."""
    if missing_part(group):
        return [], group
    if _is_plain(group, extents):
        return [group], []
    units = _alike(group, extents)
    if not units and (one_clock := _of_one_clock(group, extents)):
        units = [one_clock]
        found.set_back += [(piece, one_clock[-1]) for piece in group if piece not in one_clock]
        return units, []
    settled = {piece for unit in units for piece in unit}
    return units, [piece for piece in group if piece not in settled]


def _is_plain(group: list[Piece], extents: Extents) -> bool:
    """Whether no sensor has two pieces at one time."""
    ordered = sorted(group, key=lambda piece: (piece.part, extents[piece].begin_s, extents[piece].end_s))
    return not any(
        earlier.part == other.part and extents[other].begin_s <= extents[earlier].end_s
        for earlier, other in pairwise(ordered)
    )


def _alike(group: list[Piece], extents: Extents) -> list[list[Piece]]:
    """Return the pieces of all sensors that begin and end together, where no other piece does."""
    count = len({piece.part for piece in group})
    alike = {
        piece: [other for other in group if _begins_with(piece, other, extents) and _ends_with(piece, other, extents)]
        for piece in group
    }
    return [
        same
        for piece, same in alike.items()
        if piece is same[0]
        and len(same) == len({other.part for other in same}) == count
        and all(alike[other] == same for other in same)
    ]


def _of_one_clock(group: list[Piece], extents: Extents) -> list[Piece]:
    """Return what is left of a group in which one file's clock was set back: what begins, or ends, as the others do."""
    by_part: dict[Part, list[Piece]] = {}
    for piece in group:
        by_part.setdefault(piece.part, []).append(piece)
    several = [same for same in by_part.values() if len(same) > 1]
    if len(several) != 1 or len({piece.file for piece in several[0]}) > 1:
        return []
    others = [same[0] for same in by_part.values() if len(same) == 1]
    first, *_, last = sorted(several[0], key=lambda piece: piece.restart)
    if all(_begins_with(first, other, extents) for other in others):
        return [first, *others]
    if all(_ends_with(last, other, extents) for other in others):
        return [last, *others]
    return []


def _begins_with(piece: Piece, other: Piece, extents: Extents) -> bool:
    return abs(extents[piece].begin_s - extents[other].begin_s) <= RESTART_S


def _ends_with(piece: Piece, other: Piece, extents: Extents) -> bool:
    return abs(extents[piece].end_s - extents[other].end_s) <= RESTART_S


def _begin_s(unit: list[Piece], extents: Extents) -> float:
    return min(extents[piece].begin_s for piece in unit)


class _Joining:
    """Sessions of one name that grow by units in the order of their times; `ends_s` is how far each part reaches."""

    def __init__(self, extents: Extents) -> None:
        self.sessions: list[list[Piece]] = []
        self._ends_s: list[dict[Part, float]] = []
        self._extents = extents

    def add(self, unit: list[Piece]) -> None:
        """Lay a unit to the first session that has nothing at its time, or begin another."""
        free = (at for at, ends_s in enumerate(self._ends_s) if all(self._is_after(piece, ends_s) for piece in unit))
        at = next(free, len(self.sessions))
        if at == len(self.sessions):
            self.sessions.append([])
            self._ends_s.append({})
        self.sessions[at] += unit
        ends_s = self._ends_s[at]
        for piece in unit:
            ends_s[piece.part] = max(ends_s.get(piece.part, -np.inf), self._extents[piece].end_s)

    def _is_after(self, piece: Piece, ends_s: Mapping[Part, float]) -> bool:
        """Whether a piece begins after all that is there; of another sensor, up to a second may be shared."""
        begin_s = self._extents[piece].begin_s
        return all(begin_s > end_s - (0.0 if part == piece.part else RESTART_S) for part, end_s in ends_s.items())
