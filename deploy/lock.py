"""Write deploy/locks/: every package of a server and of a device at one version, with the hashes of all its files.

    python deploy/lock.py [--upgrade]      # keeps the versions that are locked, unless told otherwise

Resolved by uv for every platform at once (x86-64, aarch64; Python 3.11 and later). torch and the CUDA libraries that
it alone needs are in torch.txt: the hashes there are those of the public index, which serves a CUDA build on x86-64 and
a CPU build on aarch64. Another build has other hashes: docs/operations.md, 'Reproducible installs'.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
NOT_INSTALLED = {"colorama": "BSD-3-Clause", "triton": "MIT"}
WANTED = {"server": ("aggregator", "postgres"), "device": ("edge",)}
HEADER = "# Made by `make lock` from pyproject.toml; do not edit. All files' hashes, for every platform."


ONLY_TORCH = re.compile(r"(torch|triton|cuda-\w+|nvidia-[\w-]+)==")
"""What torch.txt holds."""


def main() -> int:
    """Write the files; 0 if uv could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    upgrade = parser.parse_args().upgrade
    LOCKS.mkdir(exist_ok=True)
    before = [] if upgrade else [entry for file in sorted(LOCKS.glob("*.txt")) for entry in entries(file.read_text())]
    torch: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known.txt"
        known.write_text("".join(before))
        for name, extras in WANTED.items():
            out = Path(folder) / f"{name}.txt"
            out.write_text(known.read_text())  # uv keeps the versions that it finds there
            if code := _resolve(extras, out):
                return code
            known.write_text(out.read_text())  # the same versions for both
            every = entries(out.read_text())
            torch = torch or [entry for entry in every if ONLY_TORCH.match(entry)]
            _write(f"{name}.txt", f"Extras: {', '.join(extras)}; without torch", every, without=ONLY_TORCH)
    _write("torch.txt", "torch and what it alone needs, from the public index", torch)
    names = {re.split("==| ", entry)[0] for file in LOCKS.glob("*.txt") for entry in entries(file.read_text())}
    found = {name: license_of(name) for name in sorted(names)}
    (LOCKS / "licenses.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


def license_of(name: str) -> str:
    """Return a package's license as it is installed here; CUDA's and Windows's packages aren't."""
    try:
        about = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED.get(
            name, "NVIDIA's, see the package" if ONLY_TORCH.match(f"{name}==") else "see the package"
        )
    classifiers = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    listed = " OR ".join(text.rpartition(" :: ")[2] for text in classifiers)
    return about.get("License-Expression") or listed or (about.get("License") or "see the package").splitlines()[0]


def entries(lock: str) -> list[str]:
    """Split a lock file into its entries: a requirement with its hashes each."""
    return re.findall(r"^[a-z0-9].*(?:\n +--hash=.*)*\n", lock, re.M)


def _resolve(extras: tuple[str, ...], out: Path) -> int:
    words = [word for extra in extras for word in ("--extra", extra)]
    how = ["--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *words, *how, "--output-file", str(out)]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    return subprocess.run(command, cwd=LOCKS.parent.parent, env=plain, check=False).returncode


def _write(name: str, about: str, every: list[str], without: re.Pattern[str] | None = None) -> None:
    kept = [entry for entry in every if without is None or not without.match(entry)]
    (LOCKS / name).write_text("".join([f"{HEADER}\n# {about}.\n", *kept]))


if __name__ == "__main__":
    sys.exit(main())
