"""`gaitway cache`: shows or empties the folder in which all programs keep prepared windows."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

USAGE = """\
Usage: gaitway cache [--clear]

Show the folder of prepared windows, and the size of each data set's. The folder is $XDG_CACHE_HOME/gaitway/windows, by
default below ~/.cache; a command's --cache option selects another. --clear removes the windows, which are prepared
again when needed.
"""
_KEPT = re.compile(r"(.+)-[0-9a-f]{24}\.npz")


def default_cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/gaitway/windows`, by default under `~/.cache`, or `.cache` for a user without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "gaitway" / "windows"
    try:
        home = Path.home()
    except RuntimeError:  # a container's user without a name
        home = Path()
    return home / ".cache" / "gaitway" / "windows"


def main(words: Sequence[str]) -> int:
    """Print the cached data sets, or remove them; return the exit status."""
    if words not in ([], ["--clear"]):
        print(USAGE, end="", file=sys.stdout if words in (["--help"], ["-h"]) else sys.stderr)
        return 0 if words in (["--help"], ["-h"]) else 2
    folder = default_cache_dir()
    kept = _kept(folder)
    print(f"{folder}: {sum(map(len, kept.values()))} prepared data sets{', removed' if words else ''}")
    for name, files in sorted(kept.items()):
        print(f"  {name}: {len(files)}, {sum(path.stat().st_size for path in files) / 1e6:,.1f} MB")
    if words:
        for path in (path for files in kept.values() for path in files):
            path.unlink()
    return 0


def _kept(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each data set, ignoring files that our programs didn't write."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*.npz")):
        if match := _KEPT.fullmatch(path.name):
            found[match[1]].append(path)
    return found
