"""Write the samples of a version: `python -m tests.samples.make --version 0.4.0`, once, by the version's own code.

A version that is there is left alone, as its files are what users have. Until it is released (its tag `v0.4.0` is
made) `--replace` writes them anew. Recordings are generated, networks tiny, keys made up, clocks stand still: two runs
on one machine write the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.samples import FOLDER
from tests.samples.messages import NOW, plan

REPOSITORY = FOLDER.parents[1]
LIMIT_BYTES = 360 * 1024
"""All files of a version together."""


def main() -> None:
    """Write a version's folder, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True, help="as in pyproject.toml")
    parser.add_argument("--replace", action="store_true", help="write the samples of an unreleased version anew")
    given = parser.parse_args()
    out = FOLDER / given.version
    if problem := refused(given.version, out, replace=given.replace):
        sys.exit(problem)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        made.mkdir()
        make(made, Path(folder), given.version)
        size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
        if size > LIMIT_BYTES:
            sys.exit(f"the samples have {size:,} bytes, at most {LIMIT_BYTES:,} are kept")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    print(f"{out}: {size:,} bytes")


def refused(version: str, out: Path, *, replace: bool) -> str | None:
    """Say why a version's samples are not written; None where they may be."""
    own = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    if version != own:
        return f"this is the code of {own}, which cannot write what {version} wrote"
    if out.exists() and not replace:
        return f"{out} is there; what a released version wrote is not written anew (--replace before its release)"
    tags = subprocess.run(
        ["git", "-C", str(REPOSITORY), "tag", "--list", f"v{version}", version],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return f"{version} is released ({tags.split()[0]}): its samples stay as they are" if tags.strip() else None


def make(out: Path, scratch: Path, version: str) -> None:
    """Write every sample into the folder `out`; `scratch` is for what is not kept."""
    from tests.samples import device, models, server, simulation, wire  # torch takes a second, which a refusal need not

    with ExitStack() as still:
        still.enter_context(patch("time.time", lambda: NOW))
        still.enter_context(patch("time.perf_counter", lambda: 0.0))
        # what is installed may be of another checkout
        still.enter_context(patch("sim.results.description.version", lambda _: version))
        write_plan(out)
        wire.write(out)
        models.write(out, scratch)
        simulation.write(out, scratch)
        device.write(out)
        server.write(out, scratch)


def write_plan(out: Path) -> None:
    """Write plan.json and plan.toml, which mean the same."""
    values = plan().model_dump(mode="json")
    dump(out / "plan.json", values)
    lines = [f"{name} = {toml(value)}" for name, value in values.items()]
    (out / "plan.toml").write_text("\n".join(lines) + "\n")


def toml(value: Any) -> str:
    """Write a JSON value without null as TOML, tables within one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(name)} = {toml(held)}" for name, held in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def toml_key(name: str) -> str:
    """Write a key, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def dump(path: Path, value: object) -> None:
    """Write JSON that a person can compare."""
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
