"""What 50 open pages cost a round of 1,000 devices, and how soon they are told of what happens.

    python benchmarks/bench_pages_live.py --devices 1000 --rounds 6 --pages 50 --json live.json

Broker, server with its worker, devices (thin_devices.py: real MQTT, statuses and uploads, no training) and pages
(page_readers.py) are processes of their own on this machine. Rounds alternate: the first without pages, the second with
them, and so on, so that what else the machine does falls on both. A delay is from an event's time in the journal to the
next message on a page's stream that tells of its subject. It fails if pages lengthen rounds or take processor time
of the server beyond the limits, or are told too late.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from bench_load import HERE, Programs, ask, free_port, mosquitto, wait
from rich.table import Table

from aggregator_api.auth.api_keys import OPERATOR_FILE
from gaitway.terminal import Console

LONGER, CORE_A_PAGE, DELAY_P99_S = 1.5, 0.006, 5.0
"""Limits: of a round's duration with pages to without; of the share of a core that an open page takes; of the delay."""
SIZES = {"channels": [8, 8], "feature_dim": 8, "hidden": 8}
PLAN: dict[str, Any] = {
    "labels": ["still", "walking", "up", "down", "sitting", "standing"],
    "model": {"name": "har_cnn", "options": SIZES},
    "method": {"name": "fedavg"},
    "training": {"classes": 6, "feature_dim": 8},
}
"""A small network: what counts is how much happens, not how many bytes."""


def measure(folder: Path, programs: Programs, given: argparse.Namespace) -> dict[str, Any]:
    """Play the rounds, and return the figures."""
    mqtt, http = free_port(), free_port()
    os.environ["GAITWAY_KEY_REQUESTS_PER_S"] = os.environ["GAITWAY_ADDRESS_REQUESTS_PER_S"] = "1000000"
    programs.start("broker", *mosquitto(folder, mqtt))
    serve = ("serve", "--port", str(http), "--broker-port", str(mqtt), "--data-dir", str(folder / "data"))
    programs.start("server", sys.executable, "-m", "aggregator_api", *serve)
    url, here = f"http://127.0.0.1:{http}", f"http://127.0.0.1:{http}/v1/federations/load"
    wait(lambda: bool(ask(f"{url}/readyz")), "the server is not ready")
    key_file = folder / "data" / OPERATOR_FILE
    key = key_file.read_text().strip()
    plan = {**PLAN, "rounds": {"rounds": given.rounds, "minimum_clients": given.devices}}
    ask(f"{url}/v1/federations", {"name": "load", "plan": plan}, key=key)
    thin = (str(HERE / "thin_devices.py"), "--federation", "load", "--devices", str(given.devices), "--key", key)
    programs.start("devices", sys.executable, *thin, "--broker", f"127.0.0.1:{mqtt}", "--server", url)
    readers = (str(HERE / "page_readers.py"), "--server", f"127.0.0.1:{http}", "--key-file", str(key_file))
    readers += ("--federation", "load", "--pages", str(given.pages), "--out")
    spent, got = [_seconds(programs)], []
    for number in range(1, given.rounds + 1):
        wait(lambda n=number: ask(here, key=key)["round"] >= n, f"round {number} does not begin", every_s=0.2)
        has_pages = number % 2 == 0
        if has_pages:
            programs.start("pages", sys.executable, *readers, str(folder / f"{number}.json"))
        wait(lambda n=number: _is_over(here, n, key), f"round {number} does not end", every_s=0.2)
        spent.append(_seconds(programs))
        if has_pages:
            programs["pages"].terminate()
            programs["pages"].wait(60)
            got.append(json.loads((folder / f"{number}.json").read_text()))
    rounds = [ask(f"{here}/rounds/{n}", key=key) for n in range(1, given.rounds + 1)]
    return _figures(rounds, spent, got, _journal(f"{here}/journal", key), given.devices, given.pages)


def _is_over(here: str, number: int, key: str) -> bool:
    return bool(ask(f"{here}/rounds/{number}", key=key)["closed_at"])


def _seconds(programs: Programs) -> float:
    process = psutil.Process(programs["server"].pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _journal(url: str, key: str) -> list[tuple[float, str]]:
    found, cursor = [], 0
    while cursor is not None:
        page = ask(f"{url}?limit=500&cursor={cursor}", key=key)
        found += [(one["created_at"], one["kind"].partition(".")[0]) for one in page["items"]]
        cursor = page["next_cursor"]
    return found


def _figures(
    rounds: list[dict[str, Any]],
    spent: list[float],
    got: list[dict[str, Any]],
    journal: list[tuple[float, str]],
    devices: int,
    pages: int,
) -> dict[str, Any]:
    lasted = [each["closed_at"] - each["opened_at"] for each in rounds]
    cpu = [after - before for before, after in pairwise(spent)]
    messages, events, open_s, delays = 0, 0, 0.0, []
    for each in got:
        told_of = [(at, subject) for at, subject in journal if each["from"] + 2 <= at <= each["to"] - 3]
        events, open_s = events + len(told_of), open_s + each["to"] - each["from"]
        for told in each["told"]:
            messages += len(told)
            delays += _delays(told, told_of)
    without, with_pages = slice(0, None, 2), slice(1, None, 2)
    return {
        "round without pages, s": statistics.mean(lasted[without]),
        "round with pages, s": statistics.mean(lasted[with_pages]),
        "round, each, s": [round(one, 1) for one in lasted],
        "updates a second without pages": devices / statistics.mean(lasted[without]),
        "updates a second with pages": devices / statistics.mean(lasted[with_pages]),
        "server's processor time a round without pages, s": statistics.mean(cpu[without]),
        "server's processor time a round with pages, s": statistics.mean(cpu[with_pages]),
        "core a page": (statistics.mean(cpu[with_pages]) - statistics.mean(cpu[without])) / open_s * len(got) / pages,
        "server's processor time, each, s": [round(one, 1) for one in cpu],
        "events of the journal a second": events / open_s,
        "messages a second to all pages": messages / open_s,
        "delay p50, s": statistics.median(delays),
        "delay p99, s": statistics.quantiles(delays, n=100)[98],
        "events that a page was not told of": sum(one == float("inf") for one in delays),
        "parts a second": sum(len(each["took"]) for each in got) / open_s,
        "part p50, ms": 1e3 * statistics.median(took for each in got for took in each["took"]),
        "parts refused": sum(each["refused"] for each in got),
    }


def _delays(told: list[list[Any]], events: list[tuple[float, str]]) -> list[float]:
    """Return for each event how long it took until a message told of its subject; infinity: none did."""
    by_subject: dict[str, list[float]] = {}
    for at, subjects in told:
        for subject in subjects.split():
            by_subject.setdefault(subject, []).append(at)
    found = []
    for at, subject in events:
        times = by_subject.get(subject, [])
        k = bisect.bisect_left(times, at)
        found.append(times[k] - at if k < len(times) else float("inf"))
    return found


def wrong(found: dict[str, Any]) -> list[str]:
    """Say which limits were missed."""
    said = []
    ratio = found["round with pages, s"] / found["round without pages, s"]
    if ratio > LONGER:
        said.append(f"a round takes {ratio:.2f} times as long with pages, at most {LONGER}")
    if found["core a page"] > CORE_A_PAGE:
        said.append(f"a page takes {found['core a page']:.4f} of a core, at most {CORE_A_PAGE}")
    if not found["delay p99, s"] <= DELAY_P99_S:
        said.append(f"the delay's 99th percentile is {found['delay p99, s']:.1f} s, at most {DELAY_P99_S}")
    if found["parts refused"] or found["events that a page was not told of"]:
        said.append("parts were refused, or events not told of")
    return said


def main() -> None:
    """Measure, print a table, write JSON, and fail if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6, help="an even number: half of them with pages")
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--no-limits", action="store_true", help="only measure")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    before = os.getloadavg()
    folder = tempfile.TemporaryDirectory(prefix="gaitway-pages-")
    with folder as name, Programs(Path(name)) as programs:
        found = measure(Path(name), programs, given)
    table = Table("figure", "", title=f"{given.pages} pages beside rounds of {given.devices} devices")
    for figure, value in found.items():
        table.add_row(figure, f"{value:,.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
    facts = {"machine": platform.machine(), "cores": os.cpu_count(), "load": (before, os.getloadavg())}
    print(facts, time.strftime("%Y-%m-%d"))
    if given.json:
        given.json.write_text(json.dumps({"facts": facts, "figures": found}, indent=2) + "\n")
    if (missed := wrong(found)) and not given.no_limits:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
