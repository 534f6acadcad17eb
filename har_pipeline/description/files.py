"""Finds a description's files: a regular expression over their paths, matched within a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Protocol

from har_pipeline.description.keys import anchored, role_of_group
from har_pipeline.description.model import Description
from har_pipeline.errors import SettingsError, SourceError
from har_pipeline.readers.archive import Layout, Source, printable, unpacking, walk

if TYPE_CHECKING:
    from har_pipeline.description.ranges import KnownRanges

MATCHING_S = 10.0
MAX_CHARACTERS = 1000
"""Longer paths match nothing."""
# Python's expressions can take years on one name, and a thread can't be stopped, but a process can.
MATCHER = """
import json, re, sys
pattern, names = json.load(sys.stdin)
pattern, found = re.compile(pattern), []
for name in names:
    match = pattern.fullmatch(name)
    own = [group for group in pattern.groupindex if group.startswith("sensor") and match and match[group] is not None]
    rest = name
    for low, high in sorted((match.span(group) for group in own), reverse=True):
        rest = rest[:low] + rest[high:]
    found.append(match and [match.groupdict(), rest])
json.dump(found, sys.stdout)
"""


class Matched(NamedTuple):
    """A matched path: the words of the named groups, and `visit`, the path without the group `sensor`."""

    captured: Mapping[str, str]
    visit: str


class Bytes(Protocol):
    """A file or pipe to read from: at most the given number of bytes, without waiting for more; none at its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""


class DescribedFile(NamedTuple):
    """One file: its path from the root on, the file on disk that holds it, what its path says; `open` undoes a .gz.

    An `endless` one is a pipe or still being written, and may have any length.
    """

    name: str
    path: Path
    matched: Matched
    open: Callable[[], AbstractContextManager[Bytes]]
    endless: bool = False
    ranges: KnownRanges | None = None


@dataclass(frozen=True)
class DescribedFiles(Source):
    """The files under a root that a description matches; `others` are the paths that it doesn't match.

    `damaged` lists the archives that are left out.
    """

    matches: Mapping[str, Matched] = field(default_factory=dict, repr=False)
    others: tuple[str, ...] = field(default=(), repr=False)
    damaged: tuple[str, ...] = ()
    ranges: KnownRanges | None = field(default=None, repr=False)

    def each(self) -> Iterator[DescribedFile]:
        """Yield them in the container's order (folders and zips: sorted); each can be opened until the next comes."""
        for member in walk(self.root, _everything, lambda damaged: None):
            if member.name in self.matches:
                yield DescribedFile(
                    member.name, member.path, self.matches[member.name], member.open, ranges=self.ranges
                )


def find_files(description: Description, root: Path | str | None) -> DescribedFiles:
    """Look through a folder with all that is below it, an archive, or at one file with the folders that it lies in.

    Raises:
        SourceError: if there is nothing at root, or nothing that the description's `files` matches.
        SettingsError: if matching takes too long.
    """
    expected = f"files = '{description.files}'"
    if root is None:
        raise SourceError(f"described recordings need the path of their folder, archive or file; {expected}")
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root} does not exist; expected a folder, archive or file with {expected}")
    damaged: list[str] = []
    with unpacking(str(root)):
        members = [(member.name, member.path) for member in walk(root, _everything, damaged.append)]
    if damaged and not members:
        raise SourceError(damaged[0])
    names = [name for name, _ in members]
    alone = names == [printable(root.name)] and members[0][1] == root
    paths = [printable(root.resolve().as_posix())] if alone else names
    matches = _matches(description.files, names, paths)
    ranges = description.ranges
    of_ranges = {} if ranges is None else _matches(ranges.files, names, paths)
    matches = {name: matched for name, matched in matches.items() if name not in of_ranges}
    if alone:
        matches = {name: matched._replace(visit=PurePosixPath(matched.visit).name) for name, matched in matches.items()}
    others = tuple(name for name in names if name not in matches)
    if not matches:
        there = f"it contains {len(others)} others, such as {others[0]!r}" if others else "it contains no files"
        left_out = f"; left out: {damaged[0]}" if damaged else ""
        raise SourceError(f"no file under {root} matches {expected}; {there}{left_out}")
    inputs = tuple(sorted({path for name, path in members if name in matches or name in of_ranges}))
    layout = Layout(anchored(description.files), anchored(".*"), expected)
    found = DescribedFiles(root, "", layout, len(matches), inputs, matches, others, tuple(damaged))
    if ranges is None:
        return found
    from har_pipeline.description.ranges import read_ranges  # it reads files of the kind that is defined here

    return replace(found, ranges=read_ranges(description, ranges, replace(found, matches=of_ranges).each()))


def _matches(files: str, names: Sequence[str], paths: Sequence[str]) -> dict[str, Matched]:
    return {name: found for name, found in zip(names, match_names(files, paths), strict=True) if found}


def match_names(files: str, names: Sequence[str]) -> list[Matched | None]:
    """Match paths, each from the root or from any folder on to its end; None where one does not match.

    Raises:
        SettingsError: after MATCHING_S.
    """
    short = [name if len(name) <= MAX_CHARACTERS else "" for name in names]
    request = json.dumps([anchored(files).pattern, short])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", MATCHER],
            input=request,
            capture_output=True,
            text=True,
            timeout=MATCHING_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise SettingsError(
            f"files: {files!r} takes more than {MATCHING_S:.0f} s on {len(names)} paths; "
            "avoid repeats within repeats, and write [^/]+ for .+"
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise SettingsError(f"files: {files!r} cannot be matched: {error}") from error
    found = (Matched(joined(match[0]), match[1]) if match is not None else None for match in json.loads(done.stdout))
    return [match if name else None for match, name in zip(found, short, strict=True)]


def joined(captured: Mapping[str, str | None]) -> dict[str, str]:
    """Put together what the groups of one role have captured, in the order of their numbers: `anna_wrist`."""
    words: dict[str, list[str]] = {}
    for name, word in sorted(captured.items(), key=lambda item: (len(item[0]), item[0])):
        words.setdefault(role_of_group(name), []).extend([word] if word else [])
    return {role: "_".join(parts) for role, parts in words.items()}


def _everything(_archive: str) -> bool:
    return True
