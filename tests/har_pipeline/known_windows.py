"""Fingerprints of the windows of known recordings, so that a change of their numbers is noticed.

    GAITWAY_DATA=DIR python -m tests.har_pipeline.known_windows

writes known_windows.json anew, which is right only after a change of numbers that was meant.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from har_pipeline import ClientWindows, prepare

FILE = Path(__file__).with_name("known_windows.json")
FOLDERS = {"motionsense": "motionsense", "spsw": "sp_sw_har", "realworld": "realworld", "ucihar": "uci_har"}


def made_on() -> str:
    """What the last bits of the numbers depend on, as far as it can be asked."""
    return f"numpy {np.__version__}, {platform.machine()}"


def fingerprint(windows: ClientWindows) -> list[Any]:
    """Number of windows, sha256 of all arrays, and the mean size of the numbers, which another CPU gives as well."""
    digest = hashlib.sha256()
    for array in (windows.x, windows.y, windows.start_s, windows.session):
        digest.update(np.ascontiguousarray(array).tobytes())
    return [len(windows), digest.hexdigest()[:24], round(float(np.abs(windows.x).mean(dtype=np.float64)), 6)]


def fingerprints(dataset: str, data: Path) -> dict[str, list[Any]]:
    prepared = prepare(dataset, data / FOLDERS[dataset])
    return {client: fingerprint(windows) for client, windows in prepared.clients.items()}


def main() -> None:
    data = Path(os.environ["GAITWAY_DATA"])
    record = {"made_on": made_on(), **{name: fingerprints(name, data) for name in FOLDERS}}
    lines = json.dumps(record).replace('}, "', '},\n"').replace('], "', '],\n"')
    FILE.write_text(lines + "\n", "utf-8")


if __name__ == "__main__":
    main()
