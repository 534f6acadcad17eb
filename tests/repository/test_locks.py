"""The locks hold what pyproject.toml asks for, at one version each, with hashes; the bill of materials follows them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.lock import LOCKS, WANTED, entries
from tests.repository.imports import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def asked(extra: str) -> list[Requirement]:
    """What an extra asks for, through our other extras too."""
    found = []
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        ours = requirement.name == "gaitway"
        found += [one for name in requirement.extras for one in asked(name)] if ours else [requirement]
    return found


def locked(*names: str) -> dict[str, set[Version]]:
    found: dict[str, set[Version]] = {}
    for name in names:
        for entry in entries((LOCKS / f"{name}.txt").read_text()):
            requirement = Requirement(entry.partition("\\")[0].strip())
            version = Version(re.sub("^==", "", str(requirement.specifier)))
            found.setdefault(canonicalize_name(requirement.name), set()).add(version)
    return found


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_satisfies_what_is_asked(name: str) -> None:
    held = locked(name, "torch")
    wanted = [*map(Requirement, PROJECT["dependencies"]), *(one for extra in WANTED[name] for one in asked(extra))]
    for requirement in wanted:
        if requirement.marker and not requirement.marker.evaluate({"python_version": "3.11"}):
            continue  # the locks begin with 3.11
        versions = held.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement} is not in {name}.txt: run `make lock`"
        for version in versions:
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: {version} is locked"


def test_every_file_has_hashes_and_no_index_is_named() -> None:
    for file in sorted(LOCKS.glob("*.txt")):
        text = file.read_text()
        every = entries(text)
        assert len(every) == len(re.findall(r"^[a-z0-9][\w.-]*==", text, re.M)) > 10
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in every), file.name
        assert "://" not in text
        assert "index" not in text.replace("public index", "")


def test_a_server_and_a_device_on_one_machine_ask_for_the_same_versions() -> None:
    server, device = locked("server"), locked("device")
    assert {
        name: (server[name], device[name]) for name in server.keys() & device.keys() if server[name] != device[name]
    } == {}
    assert "torch" not in server.keys() | device.keys()


@pytest.mark.skipif(importlib.util.find_spec("cyclonedx_py") is None, reason="`make dist` installs cyclonedx-bom")
def test_the_bill_of_materials_names_every_locked_package(tmp_path: Path) -> None:
    words = [sys.executable, str(REPOSITORY / "deploy" / "sbom.py"), "--out", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)  # it validates them
    for name in ("server", "device", "torch"):
        bill = json.loads((tmp_path / f"{name}.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        named = {canonicalize_name(one["name"]): Version(one["version"]) for one in bill["components"]}
        assert named.keys() == locked(name).keys()
        assert all(one["licenses"] for one in bill["components"])


def test_the_license_of_every_locked_package_is_known() -> None:
    known = json.loads((LOCKS / "licenses.json").read_text())
    assert known.keys() == locked("server", "device", "torch").keys(), "run `make lock`"
    assert {name for name, words in known.items() if not words} == set()
