"""Files of HHAR's size and layout: nine users, four models of two handsets each, both sensors, as text.

A handset's rows are formatted once and given to every user, which is what makes a gigabyte in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

USERS = "abcdefghi"
RATES_HZ = {"nexus4": 200, "s3": 150, "s3mini": 100, "samsungold": 50}
ACTIVITIES = ("stand", "null", "sit", "walk", "null", "stairsup", "stairsdown", "null", "bike")
HEAD = "Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt\n"
START_MS = 1_424_696_633_908


def write(folder: Path, rows: int) -> tuple[list[Path], int]:
    """Write both files with so many rows each (nearly: whole handsets) and jittered times; return them and all rows."""
    seconds = rows / len(USERS) / (2 * sum(RATES_HZ.values()))
    paths, written = [], 0
    for number, sensor in enumerate(("accelerometer", "gyroscope")):
        blocks = list(_blocks(seconds, number))
        path = folder / f"Phones_{sensor}.csv"
        with path.open("wb") as file:
            file.write(HEAD.encode())
            for user in USERS:
                for block in blocks:
                    file.write(block.replace(b",@,", f",{user},".encode()))
        paths.append(path)
        written += len(USERS) * sum(block.count(b"\n") for block in blocks)
    return paths, written


def _blocks(seconds: float, seed: int) -> Iterator[bytes]:
    random = np.random.default_rng(seed)
    for model, rate_hz in RATES_HZ.items():
        for handset in (1, 2):
            count = int(seconds * rate_hz)
            since_s = (np.arange(count) + random.uniform(-0.2, 0.2, count)) / rate_hz
            wave = 5 * np.sin(2 * np.pi * since_s[:, None] * random.uniform(0.5, 5, 3))
            values = (wave + random.normal(0, 0.3, (count, 3))).astype(np.float32)
            stretch = np.minimum(np.arange(count) * len(ACTIVITIES) // max(count, 1), len(ACTIVITIES) - 1)
            frame = pd.DataFrame(
                {
                    "Index": np.arange(count),
                    "Arrival_Time": START_MS + (1000 * since_s + random.uniform(0, 8, count)).astype(np.int64),
                    "Creation_Time": START_MS * 1_000_000 + (1e9 * since_s).astype(np.int64),
                    **{axis: values[:, column] for column, axis in enumerate("xyz")},
                    "User": "@",
                    "Model": model,
                    "Device": f"{model}_{handset}",
                    "gt": np.array(ACTIVITIES)[stretch],
                }
            )
            yield frame.to_csv(index=False, header=False).encode()
