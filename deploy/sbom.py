"""Write a software bill of materials (CycloneDX 1.6, JSON) of a server and of a device from deploy/locks/.

    python deploy/sbom.py [--out dist/sbom]

Names, versions, hashes and package URLs come from the locks, licenses from licenses.json beside them. What the images'
base and the machine bring isn't in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
PROJECT = LOCKS.parent.parent / "pyproject.toml"


def main() -> int:
    """Write one file for each lock; 0 if all could be written and are valid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist/sbom"), help="folder for the files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for lock in sorted(LOCKS.glob("*.txt")):
        shape = ["--output-format", "JSON", "--spec-version", "1.6", "--output-reproducible", "--validate"]
        target = [
            "--pyproject",
            str(PROJECT),
            "--mc-type",
            "application",
            "--output-file",
            str(out / f"{lock.stem}.json"),
        ]
        command = [sys.executable, "-m", "cyclonedx_py", "requirements", *shape, *target, str(lock)]
        if code := subprocess.run(command, check=False).returncode:
            return code
        add_licenses(out / f"{lock.stem}.json")
        print(out / f"{lock.stem}.json")
    return 0


def add_licenses(path: Path) -> None:
    """Write each component's license into a bill of materials."""
    known = json.loads((LOCKS / "licenses.json").read_text())
    document = json.loads(path.read_text())
    for component in document["components"]:
        component["licenses"] = [{"license": {"name": known[component["name"]]}}]
    path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
