"""`gaitway plugins`: what installed packages add to our tables, and whether it can be used."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from gaitway.plugins import GROUPS, Plugin, installed

USAGE = """\
Usage: gaitway plugins [--json]

List what installed packages add: methods, models, readers, tasks, sensors, partitions. Nothing is imported.
A package adds an entry by an entry point of the group gaitway.methods, gaitway.models, …; the folder
docs/examples/gaitway-feddyn is one. A device runs only what its [agent] plugins names.
"""


def main(words: Sequence[str]) -> int:
    """Print the list, as a table or as JSON; returns the exit status."""
    if words not in ([], ["--json"]):
        print(USAGE, end="", file=sys.stdout if words in (["--help"], ["-h"]) else sys.stderr)
        return 0 if words in (["--help"], ["-h"]) else 2
    plugins = installed()
    if words:
        print(json.dumps([_record(plugin) for plugin in plugins], indent=2))
    elif not plugins:
        print(f"No installed package adds to our tables ({', '.join(GROUPS)}).")
    else:
        _print_table([_record(plugin) for plugin in plugins])
    return 0


def _record(plugin: Plugin) -> dict[str, str]:
    package = {"package": plugin.package, "version": plugin.version}
    return {"table": plugin.group, "name": plugin.name, **package, "object": plugin.target}


def _print_table(rows: list[dict[str, str]]) -> None:
    heading = {name: name for name in rows[0]}
    widths = {name: max(len(row[name]) for row in (heading, *rows)) for name in heading}
    for row in (heading, *rows):
        print("  ".join(text.ljust(widths[name]) for name, text in row.items()).rstrip())
