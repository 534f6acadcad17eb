"""Check that pip finds a wheel for 64-bit ARM for everything that a device needs, before anybody is at one.

    python deploy/check_aarch64.py [--python-version 3.11]

Asks pip's configured index; nothing is installed. Wheels whose metadata the index does not serve by itself are
downloaded for it, which for torch's 400 MB is too much: torch has no source distribution, so that a version that
`pip index` lists for a platform has a wheel for it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64")
AT_ONCE = 6


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """Return what an extra asks for, with what it asks for through other extras of ours."""
    found = list(project["dependencies"])
    for requirement in project["optional-dependencies"][extra]:
        ours = re.fullmatch(r"gaitway\[([a-z,]+)\]", requirement)
        inner = [r for name in ours[1].split(",") for r in requirements(project, name)] if ours else [requirement]
        found += [line for line in inner if line not in found]
    return found


def check(requirement: str, python_version: str) -> str:
    """Return what is wrong with a requirement; empty if there is a wheel for it."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    target = ["--only-binary=:all:", *platforms, "--python-version", python_version]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if requirement.startswith("torch"):
        return _torch([*pip, "index", "versions", "torch", *target])
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "install", "--dry-run", "--no-deps", "--target", folder, *target, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return _last_line(done) if done.returncode else ""


def _torch(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    if done.returncode or listed is None:
        return _last_line(done)
    return ""


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return lines[-1] if lines else f"pip ended with {done.returncode}"


def main() -> int:
    """Check all; 0 if everything has a wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python-version", default="3.11")
    version, begun = parser.parse_args().python_version, time.monotonic()
    every = requirements(tomllib.loads(PROJECT.read_text())["project"], "edge")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(every, pool.map(lambda requirement: check(requirement, version), every), strict=True))
    for requirement, wrong in found.items():
        print(f"{'no ' if wrong else 'yes'}  {requirement}" + (f": {wrong}" if wrong else ""))
    missing = sum(map(bool, found.values()))
    places = " or ".join(PLATFORMS)
    print(f"{len(found) - missing} of {len(found)} have a wheel for {places}, {time.monotonic() - begun:.0f} s")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
