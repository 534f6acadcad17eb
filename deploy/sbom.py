"""Write a software bill of materials (CycloneDX 1.6, JSON) of a server and of a device from deploy/locks/.

    python deploy/sbom.py [--out runs/sbom]

Names, versions, hashes and package URLs come from the locks; licences are not in them, and so not in here. What the
images' base and the machine bring is not in it either.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"
PROJECT = LOCKS.parent.parent / "pyproject.toml"


def main() -> int:
    """Write one file for each lock; 0 if all could be written and are valid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/sbom"), help="folder for the files")
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
        print(out / f"{lock.stem}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
