"""What one upload costs the server, by the size of the cohort: CPU seconds per upload, hashing and parsing included.

`python -m benchmarks.upload_cost --devices 100 1000 10000`

Devices are rows, the broker is a list in memory, the updates are those of a CNN of a few kilobytes: what is left is
the work of ingest, admission, the round's machine and SQLite.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import statistics
import tempfile
import time
from pathlib import Path

from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, generated, tiny_plan

CHUNK_BYTES = 128 * 1024


def measured(devices: int, uploads: int, folder: Path, profile: bool) -> dict[str, float]:
    """Open a round for so many devices, let some of them upload, and time each upload."""
    bench = Bench(folder, tiny_plan(rounds=1, clients=None, minimum_clients=devices))
    names = enrol(bench, devices)
    start = time.process_time()
    bench.say(names[-1], "ready")
    opening = time.process_time() - start
    announced = bench.now()
    assert announced.invited == devices, announced
    broadcast = bench.runtime.blobs.read(announced.model.sha256) if announced.model else b""
    step = max(1, devices // uploads)
    parcels = [generated(announced, broadcast, name, chunk_bytes=CHUNK_BYTES) for name in names[::step][:uploads]]
    profiler = cProfile.Profile()
    seconds, wall = [], []
    for parcel in parcels:
        before, on_the_clock = time.process_time(), time.perf_counter()
        if profile:
            profiler.enable()
        upload(bench, parcel)
        profiler.disable()
        seconds.append(time.process_time() - before)
        wall.append(time.perf_counter() - on_the_clock)
    answers = [bench.wires.acknowledgements(parcel.manifest.client)[-1].status for parcel in parcels]
    assert answers == ["accepted"] * len(parcels), answers
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)
    bench.runtime.stop()
    return {
        "devices": devices,
        "cpu_ms_median": 1000 * statistics.median(seconds),
        "cpu_ms_max": 1000 * max(seconds),
        "wall_ms_median": 1000 * statistics.median(wall),
        "opening_s": opening,
    }


def enrol(bench: Bench, devices: int) -> list[str]:
    """Write the rows of ready devices; the last one is to say so itself, which opens the round."""
    names = [f"device-{n:06}" for n in range(devices)]
    with bench.runtime.database.write() as session:
        federation = repositories.find_federation(session, FEDERATION)
        assert federation is not None
        common = {"federation_id": federation.id, "examples": 10, "detail": "", "enrolled_at": 0.0}
        session.add_all(DeviceRow(name=name, state="ready", seen_at=time.time(), **common) for name in names[:-1])
    return names


def upload(bench: Bench, parcel: Parcel) -> None:
    """Hand in the messages of one update."""
    bench.send(parcel.topic("begin"), parcel.manifest.model_dump_json().encode())
    for n, chunk in enumerate(parcel.chunks()):
        bench.send(parcel.topic("chunk", n), chunk)
    bench.send(parcel.topic("end"))


def main() -> None:
    """Print one line per cohort size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--uploads", type=int, default=50)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for devices in given.devices:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(devices, min(given.uploads, devices), Path(folder), given.profile)
        print("  ".join(f"{key} {value:,.2f}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
