"""Plug-ins: an installed package adds a method, model, reader … to our tables by an entry point.

    [project.entry-points."gaitway.methods"]
    feddyn = "my_package.feddyn:FedDyn"

Each of our tables is an `EntryTable` with our entries and those of installed packages, which are imported on first use.
`allow` limits the packages whose code may run: a device names them in its configuration.

`main` implements `gaitway plugins`, which lists these entries.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, Generic, TypeVar, cast

from gaitway.errors import GaitwayError

log = logging.getLogger(__name__)

GROUPS = ("methods", "models", "readers", "tasks", "sensors", "partitions")
"""The tables that other packages can add to; the entry points are `gaitway.methods` and so on."""

Entry = TypeVar("Entry")


class PluginError(GaitwayError):
    """An entry of another package can't be used."""


@dataclass(frozen=True)
class Plugin:
    """One entry of another package: `target` is its module and object, as `module:object`."""

    group: str
    name: str
    target: str
    package: str
    version: str

    @property
    def is_allowed(self) -> bool:
        """Whether this process may import it."""
        return _allowed is None or normalized(self.package) in _allowed

    def describe(self) -> str:
        """Name the package and its version."""
        return f"{self.package} {self.version}"


_allowed: frozenset[str] | None = None
_tables: dict[str, EntryTable[Any]] = {}


def normalized(package: str) -> str:
    """Return a distribution's name as package indexes compare it: `My_Package` equals `my-package`."""
    return "-".join(part for part in package.lower().replace("_", "-").replace(".", "-").split("-") if part)


def allow(packages: Iterable[str] | None) -> None:
    """Let this process import entries of these packages only; None, the initial state, allows all packages."""
    global _allowed
    _allowed = None if packages is None else frozenset(map(normalized, packages))


@cache
def installed() -> tuple[Plugin, ...]:
    """Return all installed packages' entries, allowed or not, by group, name and package, without imports."""
    found = {
        Plugin(group, entry.name, entry.value, distribution.name, distribution.version)
        for distribution in distributions()
        if "[gaitway." in (distribution.read_text("entry_points.txt") or "")  # parsing all takes 0.1 s
        for entry in distribution.entry_points
        if (group := entry.group.removeprefix("gaitway.")) in GROUPS and entry.group != group
    }
    return tuple(sorted(found, key=lambda plugin: (plugin.group, plugin.name, plugin.package)))


def find(group: str, name: str) -> Plugin | None:
    """Return an installed package's entry, allowed or not; None if the name is unknown."""
    return next((plugin for plugin in installed() if (plugin.group, plugin.name) == (group, name)), None)


def hint(group: str, name: str) -> str:
    """Name the installed but disallowed package that has an entry; empty if there isn't one."""
    plugin = find(group, name)
    if plugin is None or plugin.is_allowed:
        return ""
    return (
        f"; the installed package {plugin.describe()} has it, which this device's configuration does not allow: "
        f"add {plugin.package!r} to [agent] plugins"
    )


def missing(required: Mapping[str, str]) -> str:
    """Say which of a plan's required packages is missing, and what to do; empty if none is.

    `required` maps `group:name` to the package and its version, as `Plugin.describe` writes them.
    """
    for key, package in required.items():
        group, _, name = key.partition(":")
        plugin = find(group, name)
        if plugin is None:
            install = f"pip install '{package.partition(' ')[0]}'"
            return f"{name!r} of {group} is in the package {package}, which is not installed here: {install}"
        if not plugin.is_allowed:
            return f"{name!r} of {group} is not allowed here{hint(group, name)}"
    return ""


class EntryTable(MutableMapping[str, Entry], Generic[Entry]):
    """Entries by name: ours, and those that installed packages declare for the group.

    `check` returns what is wrong with another package's entry, or an empty string; `load` turns an entry point into an
    entry, by default by importing it. Our entry wins over another package's of the same name. An entry that can't be
    imported raises an error when requested by name; listings log it and leave it out.
    """

    def __init__(
        self,
        group: str,
        own: Mapping[str, Entry],
        *,
        check: Callable[[str, object], str] = lambda name, entry: "",
        load: Callable[[EntryPoint], object] = EntryPoint.load,
    ) -> None:
        if group not in GROUPS:
            raise ValueError(f"group {group!r}: expected one of {', '.join(GROUPS)}")
        self._group, self._own, self._check, self._load = group, dict(own), check, load
        self._loaded: dict[Plugin, Entry] = {}
        _tables[group] = self

    def plugin(self, name: str) -> Plugin | None:
        """Return another package's allowed entry of that name; None if it is ours or unknown."""
        if name in self._own:
            return None
        return next((plugin for plugin in self._plugins() if plugin.name == name), None)

    def __getitem__(self, name: str) -> Entry:
        """Return an entry, importing it first if it is another package's.

        Raises:
            KeyError: if there is none.
            PluginError: if it can't be imported, or doesn't belong in the table.
        """
        if name in self._own:
            return self._own[name]
        plugin = self.plugin(name)
        if plugin is None:
            raise KeyError(name)
        if plugin not in self._loaded:
            self._loaded[plugin] = self._import(plugin)
        return self._loaded[plugin]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._own[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, ours first; nothing is imported."""
        yield from self._own
        yield from dict.fromkeys(plugin.name for plugin in self._plugins() if plugin.name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._own or any(plugin.name == name for plugin in self._plugins())

    def items(self) -> ItemsView[str, Entry]:
        """Return names and entries, without those that can't be imported."""
        return self._importable().items()

    def values(self) -> ValuesView[Entry]:
        """Return the entries, without those that can't be imported."""
        return self._importable().values()

    def _plugins(self) -> list[Plugin]:
        return [plugin for plugin in installed() if plugin.group == self._group and plugin.is_allowed]

    def _importable(self) -> dict[str, Entry]:
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except PluginError as error:
                log.warning("%s", error)
        return found

    def _import(self, plugin: Plugin) -> Entry:
        where = f"{plugin.group}:{plugin.name} of the package {plugin.describe()}"
        try:
            entry = self._load(EntryPoint(plugin.name, plugin.target, f"gaitway.{plugin.group}"))
        except Exception as error:  # another package's module may raise anything when imported
            why = f"{type(error).__name__}: {error}"
            raise PluginError(f"{where} ({plugin.target}) can't be imported: {why}") from error
        if wrong := self._check(plugin.name, entry):
            raise PluginError(f"{where} ({plugin.target}) doesn't fit its group: {wrong}")
        return cast(Entry, entry)  # `check` has verified it


def provider(group: str, name: str) -> Plugin | None:
    """Return the other package's entry that this process uses by that name; None if it is ours or unknown."""
    return _tables[group].plugin(name) if group in _tables else None


def named_subclass(base: type, attribute: str = "name") -> Callable[[str, object], str]:
    """Return a check that an entry is a subclass of `base` whose attribute equals the entry's name."""

    def check(name: str, entry: object) -> str:
        if not (isinstance(entry, type) and issubclass(entry, base)):
            return f"expected a subclass of {base.__module__}.{base.__qualname__}, got {entry!r}"
        if (own := getattr(entry, attribute, None)) != name:
            return f"expected {attribute} = {name!r}, the entry point's name, got {own!r}"
        return ""

    return check


USAGE = """\
Usage: gaitway plugins [--json]

List what installed packages add: methods, models, readers, tasks, sensors, partitions. Nothing is imported.
A package adds an entry with an entry point in the group gaitway.methods, gaitway.models, …; see the folder
docs/examples/gaitway-feddyn. A device runs only the packages named in its [agent] plugins.
"""


def main(words: Sequence[str]) -> int:
    """Print the list as a table or as JSON; return the exit status."""
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
