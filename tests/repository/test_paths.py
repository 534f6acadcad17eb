"""The paths of docs/architecture.md: each function exists, and one of those before it calls it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.repository.imports import REPOSITORY, modules

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
MAX_STEPS = 12
Function = ast.FunctionDef | ast.AsyncFunctionDef


def paths() -> dict[str, list[str]]:
    """Return the dotted names of each path, by its title."""
    section = PAGE.partition("## Four paths to follow")[2].partition("\n## ")[0]
    parts = re.split(r"^\*\*(.+)\*\*$", section, flags=re.M)[1:]
    return {
        title: re.findall(r"^\d+\. `([\w.]+)`", text, re.M) for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def functions(module: str) -> dict[str, Function]:
    """Return a module's functions and methods by their qualified names."""
    return dict(_functions(ast.parse(modules()[module].read_text()), ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def function(name: str) -> Function | None:
    """Return the function of a dotted name; None if there is none."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if (module := ".".join(parts[:end])) in modules():
            return functions(module).get(".".join(parts[end:]))
    return None


def called_in(node: Function) -> set[str]:
    """Return the last words of everything that a function calls or passes on, by the names that it imports it by."""
    inside = list(ast.walk(node))
    names = {child.id for child in inside if isinstance(child, ast.Name)}
    imported = {each.name for child in inside if isinstance(child, ast.ImportFrom) for each in child.names}
    return names | imported | {child.attr for child in inside if isinstance(child, ast.Attribute)}


def faults(path: list[str]) -> list[str]:
    """Return the steps that do not exist, and those that none before them calls."""
    found = []
    called: set[str] = set()
    for number, name in enumerate(path):
        node = function(name)
        if node is None:
            found.append(f"{name} does not exist")
            continue
        if number and node.name not in called:
            found.append(f"{name} is called by none before it")
        called |= called_in(node)
    return found


@pytest.mark.parametrize("title", list(paths()))
def test_a_path_leads_from_function_to_function(title: str) -> None:
    path = paths()[title]
    assert 5 < len(path) <= MAX_STEPS
    assert faults(path) == []


def test_a_wrong_step_is_seen() -> None:
    assert len(paths()) == 4
    path = next(iter(paths().values()))
    assert faults([path[0], "sim.run.nothing"]) == ["sim.run.nothing does not exist"]
    assert faults([path[0], path[5]]) == [f"{path[5]} is called by none before it"]
