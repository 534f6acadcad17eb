"""The counts of docs/architecture.md: `python -m tests.repository.counts`, with the fragments by name below them.

Tests, migrations, `__init__.py` and `__main__.py` do not count. A module has one importer where one other module of
ours alone imports it, and is a fragment where it has under 60 lines besides.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.repository.imports import PACKAGES, all_imports, modules

SHORT, FRAGMENT = 50, 60


def main() -> None:
    """Print the table's figures, and each fragment with its importer."""
    counted = {name: length(file) for name, file in modules().items() if counts(file)}
    importers = defaultdict(set)
    for entry in all_imports():
        if entry.target != entry.module:
            importers[entry.target].add(entry.module)
    alone = {name: min(importers[name]) for name in counted if len(importers[name]) == 1}
    fragments = {name: importer for name, importer in alone.items() if counted[name] < FRAGMENT}
    for package in PACKAGES:
        top = [name for name in counted if name.startswith(f"{package}.") and name.count(".") == 1]
        print(f"at the top of {package}: {len(top)}")
    print(f"modules: {len(counted)}, under {SHORT} lines: {sum(lines < SHORT for lines in counted.values())}")
    print(f"with one importer: {len(alone)}, of them under {FRAGMENT} lines: {len(fragments)}")
    for name, importer in sorted(fragments.items()):
        print(f"  {name} ({counted[name]} lines) <- {importer}")


def counts(file: Path) -> bool:
    """Whether a file is one of those that are counted."""
    return file.name not in ("__init__.py", "__main__.py") and "migrations" not in file.parts


def length(file: Path) -> int:
    """Return a file's lines."""
    return len(file.read_text().splitlines())


if __name__ == "__main__":
    main()
