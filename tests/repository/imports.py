"""Read every import of our packages from the source, including those inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("gaitway", "har_pipeline", "models", "federation", "edge_agent", "aggregator_api", "export", "phone", "sim")


class Import(NamedTuple):
    """`module` of ours imports `target` in this line."""

    module: str
    target: str
    line: int

    @property
    def top(self) -> str:
        """The imported top-level package."""
        return self.target.partition(".")[0]


@cache
def tracked(*patterns: str) -> tuple[Path, ...]:
    """Return the files below git's care that match: what benchmarks and builds leave in the checkout is nobody's."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    return tuple(file for name in listed.stdout.decode().splitlines() if (file := REPOSITORY / name).is_file())


@cache
def modules() -> dict[str, Path]:
    """Return {dotted name: file} of every module of ours."""
    return {dotted(file): file for file in tracked(*(f"{package}/*.py" for package in PACKAGES))}


@cache
def all_imports() -> tuple[Import, ...]:
    """Return every import of every module of ours, without the standard library."""
    found = (entry for name, file in modules().items() for entry in imports_in(name, file.read_text(), package(file)))
    return tuple(entry for entry in found if entry.top not in sys.stdlib_module_names)


def dotted(file: Path) -> str:
    """Return a file's module name."""
    parts = file.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package(file: Path) -> str:
    """Return the package that a file's relative imports start from."""
    return ".".join(file.relative_to(REPOSITORY).parent.parts)


def imports_in(name: str, source: str, within: str) -> Iterator[Import]:
    """Yield a source's imports; `from a import b` is a.b where that is a module of ours, else a."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (Import(name, alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom(module=module, level=level):
                base = ".".join(filter(None, [*within.split(".")[: len(within.split(".")) - level + 1], module]))
                origin = base if level else str(module)
                for alias in node.names:
                    full = f"{origin}.{alias.name}"
                    yield Import(name, full if full in modules() else origin, node.lineno)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(target)), *_]
            ):
                if called in ("import_module", "__import__"):
                    yield Import(name, target, node.lineno)
