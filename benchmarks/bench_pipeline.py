"""The way from HHAR's files to windows: rows a second and core, memory, and what parsing and the stream cost.

    python benchmarks/bench_pipeline.py --rows 13000000 --out pipeline.json

Writes two synthetic files of the published layout to a temporary folder (2.4 GB at 13 million rows, and as much again
for the reader's spool), and takes apart: parsing (CSV to arrays), the reader (parsing, coding, the common clock, the
spool), the stream (filter, resampling, windows). Memory is that of a process of its own that runs all of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hhar_files import RATES_HZ, write
from measure import copy_rate, interleaved, report, resident_mb

from har_pipeline import PipelineSettings, Recording, StreamPipeline, prepare
from har_pipeline.readers import READERS
from har_pipeline.readers.archive import Source
from har_pipeline.readers.hhar import NUMBERS, WORDS
from har_pipeline.readers.tables import read_chunks

READER = READERS["hhar"]
# Floating-point operations on a pair of a grid point and a sample, as resample.py does them: offset 2, index 3,
# widths 2, taper 17, moments and right side 20, weights 6, three channels 6.
FLOPS_A_PAIR = 56
# Arrays of eight bytes that resample.py reads or writes for a pair, each at least once.
PASSES_A_PAIR = 75


def source_of(folder: Path) -> Source:
    """Find the files."""
    source = READER.open(folder, {})
    assert source is not None
    return source


def parse(source: Source) -> int:
    """Read both files to arrays and count the rows."""
    rows = 0
    for _, member in source.members():
        with member.open() as stream:
            rows += sum(len(table.numbers) for table in read_chunks(stream, member.name, NUMBERS, WORDS))
    return rows


def read(source: Source) -> int:
    """Read both files to recordings and count their samples."""
    return sum(len(each.times_s) for each in READER.recordings(source, None, {}))


def stream(recordings: list[Recording]) -> int:
    """Push recordings through one stream per client and count the windows."""
    pipelines: dict[str, StreamPipeline] = {}
    windows = 0
    for each in recordings:
        if each.client not in pipelines:
            pipelines[each.client] = StreamPipeline(PipelineSettings(), READER.labels({}), report=None)
        windows += len(pipelines[each.client].push(each))
    return windows + sum(len(each.flush()) for each in pipelines.values())


def some_recordings(source: Source) -> list[Recording]:
    """Return the recordings of one user with values of their own, so that the stream is timed without the reader."""
    clients = [f"a_{model}" for model in RATES_HZ]
    return [each._replace(values=each.values.copy()) for each in READER.recordings(source, clients, {})]


def pairs_a_row() -> float:
    """Count the grid points that a sample of one sensor is weighed for."""
    settings = PipelineSettings()
    return float(2 * settings.half_width_s * settings.rate_hz)


def whole(folder: Path) -> None:
    """Run everything once and print rows' seconds and the peak of memory; called in a process of its own."""
    before, start = resident_mb(), time.process_time()
    dataset = prepare("hhar", folder)
    windows = sum(map(len, dataset.clients.values()))
    print(time.process_time() - start, resident_mb("VmHWM"), before, windows)


def rates(count: dict[str, int], seconds: dict[str, float]) -> Iterator[dict[str, object]]:
    """Make the table's rows."""
    for name, each in seconds.items():
        yield {"part": name, "rows": count[name], "µs a row": 1e6 * each / count[name], "rows/s": count[name] / each}


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=13_000_000, help="of each of the two files")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are written and kept (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="where the figures are written as JSON")
    parser.add_argument("--whole", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.whole:
        whole(given.whole)
        return
    with tempfile.TemporaryDirectory(prefix="gaitway-bench-") as temporary:
        measure(given, given.folder or Path(temporary))


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Time the parts in turn, then the whole in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    files, rows = write(folder, given.rows)
    source = source_of(folder)
    recordings = some_recordings(source)
    samples = sum(len(each.times_s) for each in recordings)
    functions: dict[str, Callable[[], object]] = {
        "parsing": lambda: parse(source),
        "reader, parsing included": lambda: read(source),
        "stream": lambda: stream(recordings),
    }
    timings = interleaved(functions, given.repeats, warmups=0)
    command = [sys.executable, __file__, "--whole", str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds_whole, peak_mb, before_mb, windows = map(float, printed.split())
    counts = {"parsing": rows, "reader, parsing included": rows, "stream": samples, "all, own process": rows}
    seconds = {name: each.median_s for name, each in timings.items()} | {"all, own process": seconds_whole}
    moved, copied = 8 * PASSES_A_PAIR * pairs_a_row() * samples, copy_rate(1 << 17, copies=1000)
    text_bytes = sum(path.stat().st_size for path in files)
    report(
        f"HHAR's files to windows, {given.rows:,} rows a file",
        list(rates(counts, seconds)),
        out=given.out,
        packages=("numpy", "pandas"),
        more={
            "peak resident memory, MB": peak_mb,
            "of these before the first row, MB": before_mb,
            "windows": int(windows),
            "MB of text a second parsed": text_bytes / seconds["parsing"] / 1e6,
            "pairs of sample and grid point a row": pairs_a_row(),
            "GFLOP/s of the stream": FLOPS_A_PAIR * pairs_a_row() * samples / seconds["stream"] / 1e9,
            "GB/s of the stream's arrays": moved / seconds["stream"] / 1e9,
            "GB/s of a copy within the second-level cache": copied / 1e9,
            "share of that rate": moved / seconds["stream"] / copied,
            "times_s": {name: list(each.seconds) for name, each in timings.items()},
        },
    )


if __name__ == "__main__":
    main()
