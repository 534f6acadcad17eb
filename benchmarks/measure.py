"""What the benchmarks share: interleaved timing, the machine's own copy and matmul rates, a table and a JSON file.

Times are taken with `process_time` by default, so that waiting for a core that others use does not count; it is the
time of all threads of this process together. `clock=time.perf_counter` takes the time on the wall.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

Clock = Callable[[], float]
Row = Mapping[str, Any]

COPY_BYTES = 256 << 20


@dataclass(frozen=True)
class Timing:
    """The seconds of every run of one function, in the order in which they ran."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median run."""
        return statistics.median(self.seconds)

    @property
    def best_s(self) -> float:
        """The shortest run."""
        return min(self.seconds)

    def percentile_s(self, percent: float) -> float:
        """The run below which so many percent lie."""
        return float(np.percentile(self.seconds, percent))


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warmups: int = 1,
    clock: Clock = time.process_time,
    collect: bool = True,
) -> dict[str, Timing]:
    """Run the functions in turn, A B A B …, and return the times of each; the warm-ups are not counted.

    What a run returns is freed within its time; the garbage collector rests while a run is timed. It works before each
    run, which takes longer than a run of microseconds: `collect=False` spares that.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmups + repeats):
        for name, function in functions.items():
            if collect:
                gc.collect()
            gc.disable()
            try:
                start = clock()
                function()
                elapsed = clock() - start
            finally:
                gc.enable()
            if turn >= warmups:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(each)) for name, each in seconds.items()}


def copy_rate(size: int = COPY_BYTES, repeats: int = 7, *, copies: int = 1, clock: Clock = time.process_time) -> float:
    """Bytes a second that one core copies into memory it already owns: each byte counts once read and once written.

    `size` decides which cache is measured: larger than the last level for main memory; a small one needs many `copies`
    a run, so that the clock's own time does not count.
    """
    source = np.ones(size // 8)
    target = np.empty_like(source)

    def copy() -> None:
        for _ in range(copies):
            np.copyto(target, source)

    timing = interleaved({"copy": copy}, repeats, clock=clock)["copy"]
    return 2 * source.nbytes * copies / timing.median_s


def matmul_rate(threads: int = 1, size: int = 1024, repeats: int = 7, *, clock: Clock = time.perf_counter) -> float:
    """Floating-point operations a second of torch's float32 matmul of (size, size) on so many threads.

    On the wall by default, since process time adds the threads up; beside others, take one thread and process time.
    """
    import torch

    left, right = torch.rand(size, size), torch.rand(size, size)
    with torch_threads(threads):
        timing = interleaved({"matmul": lambda: left @ right}, repeats, warmups=2, clock=clock)["matmul"]
    return float(2 * size**3 / timing.median_s)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Give torch so many threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resident_mb(field: str = "VmRSS", pid: int | str = "self") -> float:
    """Memory of a process in MB as /proc says it: resident (VmRSS) or its peak (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(found[field].split()[0]) * 1024 / 1e6


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Date, processor, cores, load, and the versions of Python and of the packages."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
    }


def report(
    title: str,
    rows: Sequence[Row],
    *,
    out: Path | None = None,
    packages: Sequence[str] = ("numpy", "torch"),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print the rows as a table, their keys as its head, and write them with what the machine is as JSON to `out`.

    `more` goes into the JSON and is printed below the table: rates, counts, all times.
    """
    from rich.table import Table

    from gaitway.terminal import Console

    console, facts = Console(), machine(packages)
    heads = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*(_cell(row.get(head, "")) for head in heads))
    console.print(table)
    for name, value in (more or {}).items():
        if isinstance(value, str | int | float):
            console.print(f"{name}: {_cell(value)}", highlight=False)
    versions = ", ".join(f"{name} {each}" for name, each in facts["versions"].items())
    console.print(f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, load {facts['load_1_min']}; {versions}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {"title": title, "machine": facts, "rows": [dict(row) for row in rows], **(more or {})}
        out.write_text(json.dumps(record, indent=2) + "\n")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _cpu_model() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
