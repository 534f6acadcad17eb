"""pyproject.toml against the source: every package is listed, every import is required by the extra that needs it."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from setuptools import find_packages

from tests.repository.imports import PACKAGES, REPOSITORY, all_imports, imports_in, modules, tracked

# What runs on a machine that was installed with one extra alone.
PROGRAMS = {
    "edge": ("edge_agent", "federation", "har_pipeline", "models", "export"),
    "aggregator": ("aggregator_api", "federation", "models"),
    "sim": ("sim", "federation", "har_pipeline", "models"),
    "export": ("export", "models"),
}
# Imported only where a setting or a command asks for it, from another extra.
ON_REQUEST = {
    "psycopg": "postgres",
    "dp-accounting": "privacy",
    "ray": "ray",
    "pillow": "runtime",
    "mlflow": "tracking",
}
# Required although no module of ours imports it, and why.
NEEDED_BY_OTHERS = {
    "onnxscript": "torch.onnx.export(dynamo=True) imports it",
    "httptools": "uvicorn's faster parser imports it",
    "uvloop": "uvicorn takes it as its event loop",
}


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extra: str) -> set[str]:
    """Names that `pip install gaitway[extra]` asks for directly; an extra may name others of ours."""
    metadata = project()["project"]
    found = set()
    for requirement in [*metadata["dependencies"], *metadata["optional-dependencies"][extra]]:
        ours = re.fullmatch(r"gaitway\[([a-z,]+)\]", requirement)
        if ours:
            found |= {name for other in ours[1].split(",") for name in requirements(other)}
        else:
            found.add(normalized(re.split(r"[<>=!~;\[ ]", requirement)[0]))
    return found


@cache
def distributions() -> Mapping[str, list[str]]:
    """Return the distributions that have each top-level package."""
    return packages_distributions()


@cache
def imported(package: str) -> frozenset[str]:
    """Distributions that a package of ours imports."""
    known = distributions()
    tops = {entry.top for entry in all_imports() if entry.module.split(".")[0] == package} - set(PACKAGES)
    return frozenset(normalized(known.get(top, [top])[0]) for top in tops)


def installed_packages() -> set[str]:
    """Packages that an installation copies."""
    return set(find_packages(str(REPOSITORY), include=project()["tool"]["setuptools"]["packages"]["find"]["include"]))


def test_every_package_is_installed() -> None:
    on_disk = {name for name, file in modules().items() if file.name == "__init__.py"}
    assert installed_packages() == on_disk


def test_every_other_file_is_package_data() -> None:
    settings = project()["tool"]["setuptools"]
    listed = installed_packages()
    missing = []
    for file in (path.relative_to(REPOSITORY).as_posix() for path in tracked(*PACKAGES)):
        folder, _, name = file.rpartition("/")
        top, _, inside = file.partition("/")
        shipped = name.endswith(".py") and folder.replace("/", ".") in listed
        if not shipped and not any(fnmatch(inside, pattern) for pattern in settings["package-data"].get(top, ())):
            missing.append(file)
    assert missing == []


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_requires_what_its_programs_import(extra: str) -> None:
    needed = frozenset().union(*(imported(package) for package in PROGRAMS[extra]))
    assert needed - requirements(extra) - set(ON_REQUEST) == frozenset()
    assert all(name in requirements(other) for name, other in ON_REQUEST.items())


def test_an_exported_model_needs_no_torch() -> None:
    """What `export.recognizer` loads in a fresh process is in test_loaded_modules.py; files are read with pandas."""
    assert {"numpy", "onnxruntime", "pandas"} <= requirements("runtime")
    assert requirements("runtime") & {"torch", "scipy", "onnx", "onnxscript"} == set()


def test_nothing_is_required_that_no_program_imports() -> None:
    used = frozenset().union(*(imported(package) for package in PACKAGES))
    asked = set().union(*(requirements(extra) for extra in PROGRAMS))
    assert asked - used - set(NEEDED_BY_OTHERS) == set()


@pytest.mark.ci
def test_dev_requires_what_tests_and_demo_import() -> None:
    files = tracked("tests/*.py", "demo/*.py")
    found = {entry.top for file in files for entry in imports_in("", file.read_text(), "")}
    ours = {*PACKAGES, "tests", "deploy", "docs", *(file.stem for file in files)}
    known = distributions()
    needed = {normalized(known[top][0]) for top in found - ours - sys.stdlib_module_names - {"", "None"}}
    assert needed - requirements("dev") == set()


def test_dev_has_every_extra() -> None:
    assert set().union(*(requirements(extra) for extra in PROGRAMS)) <= requirements("dev")


def test_requirements_have_no_upper_bound() -> None:
    metadata = project()["project"]
    every = [*metadata["dependencies"], *(r for rs in metadata["optional-dependencies"].values() for r in rs)]
    assert [r for r in every if "<" in r.partition(";")[0]] == []


def test_development_keeps_to_the_torch_that_needs_no_cuda() -> None:
    (bound,) = (line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    assert bound.startswith("torch<=")
    installs = re.findall(r"pip install .*-e .*", (REPOSITORY / "Makefile").read_text())
    assert installs
    assert [line for line in installs if "-c constraints.txt" not in line] == []


def test_every_requirement_is_explained() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    assert [name for name in sorted(requirements("dev")) if name not in page] == []


def extras_of(name: str) -> set[str]:
    """Return the extras that install a package, or "all" if every one does."""
    optional = set(project()["project"]["optional-dependencies"]) - {"dev", "docs", "torch"}
    found = {extra for extra in optional if name in requirements(extra)}
    return {"all"} if found == optional else found


def wrong_extras(page: str) -> list[str]:
    """Return the packages whose extras the page's table has wrong, or that it doesn't list."""
    table = page.partition("\n## Dependencies\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, -]+) \| ([a-z, -]+) \|", table, re.M)
    listed = {name: set(extras.split(", ")) for names, extras in rows for name in names.split(", ")}
    needed = set().union(*(requirements(extra) for extra in (*PROGRAMS, "postgres", "privacy", "ray", "tracking")))
    return [name for name in sorted(needed) if listed.get(name) != extras_of(name)]


def test_the_page_lists_each_package_with_its_extras() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    assert wrong_extras(page) == []
    assert wrong_extras(page.replace("| pandas | edge, sim, runtime |", "| pandas | edge, sim |")) == ["pandas"]
