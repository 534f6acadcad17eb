"""Names: one word for one thing, none that says nothing, and tests that know public ones alone."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.repository.imports import REPOSITORY, modules

FORBIDDEN_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "types", "manager"})
PRIVATE = re.compile(r"_[a-zA-Z]")
SAME_IN_SEVERAL_PACKAGES = {
    "ConfigError": "each program's own, below its own root of errors",
    "SettingsError": "each package's own, below its own root of errors",
    "LabelError": "an activity that is no label: of a plan, of a description",
    "BrokerAddress": "one message, written by the server and read by the device",
    "BrokerLogin": "one message, written by the server and read by the device",
    "Credentials": "one message, written by the server and read by the device",
}
"""Classes whose name two packages have, and why they are the same thing."""


def test_no_name_says_nothing() -> None:
    assert [name for name in modules() if FORBIDDEN_NAMES & set(name.split("."))] == []


def test_a_class_name_is_one_thing_in_all_packages() -> None:
    packages = defaultdict(set)
    for name, file in modules().items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                packages[node.name].add(name.partition(".")[0])
    assert {name for name, having in packages.items() if len(having) > 1} == set(SAME_IN_SEVERAL_PACKAGES)


def test_no_test_imports_or_replaces_a_private_name_of_ours() -> None:
    """Ruff's SLF001 sees the attributes; this is about `from x import _y` and `setattr(x, "_y", …)`."""
    found = []
    for file in (*(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ImportFrom(names=names):
                    found += [(file, each.name) for each in names if PRIVATE.match(each.name)]
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    found += [(file, name)] if PRIVATE.match(name) else []
    assert found == []
