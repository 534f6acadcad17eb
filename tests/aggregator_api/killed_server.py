"""A continuous federation whose server is killed again and again: `python -m tests.aggregator_api.killed_server`.

Each server is a fork that sends itself SIGKILL: at a step between a row and its effect (a commit, a blob, an
acknowledgement, before or after it), or at any moment. Devices send what was not acknowledged again, as they do. At
the start of each server nothing that was acknowledged may be lost, and the sums must be those of the rows' blobs. In
the end it prints the sha256 of the newest version's state.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from aggregator_api.federations import exports
from aggregator_api.rounds.announcements import Announcer
from aggregator_api.storage import findings
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import ContributionRow
from aggregator_api.storage.findings import Severity
from federation import wire
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.continuous import continuous_plan, sums_parcel, withdrawal_parcel

DEVICES = ("a", "b", "c", "d")
FINAL = 1_000_000
"""From here on the numbers of what devices send last; the seeds of their examples follow from device and number."""
MAX_STEPS = 60
"""A server is killed within so many steps, of which an update has some ten."""


def main() -> None:
    """Kill as many servers as asked for, let a last one finish, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    exports.onnx = lambda made: b"onnx"
    forked(lambda: found_federation(given.folder))
    draw, kills = random.Random(given.seed), 0
    while kills < given.kills:
        seed = draw.getrandbits(32)
        status = forked(lambda seed=seed: serve_until_killed(given.folder, seed))
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(f"a server ended by itself with status {status} after {kills} kills")
        kills += 1
    if forked(lambda: finish(given.folder)):
        sys.exit("the last server has failed")
    print(json.dumps({"kills": kills, **json.loads((given.folder / "found.json").read_text())}))


def forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own, and return how it ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def found_federation(folder: Path) -> None:
    bench = Bench(folder / "data", continuous_plan(min_changes=2, max_wait_s=0.05))
    for device in DEVICES:
        bench.say(device, "ready")
    bench.stop()


def serve_until_killed(folder: Path, seed: int) -> None:
    """Check what the last server has left, then let devices send until this one is killed."""
    draw = random.Random(seed)
    bench = Bench(folder / "data")
    check(bench, folder)
    if draw.random() < 0.25:
        threading.Timer(draw.uniform(0.0, 0.5), kill_me).start()
    else:
        kill_at_step(draw.randrange(1, MAX_STEPS))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        device = draw.choice(DEVICES)
        send_next(bench, folder, device, withdraws=draw.random() < 0.2)
        if draw.random() < 0.2:
            bench.as_inbox(bench.runtime.coordinator.tick)


def finish(folder: Path) -> None:
    """Let each device send its last sums, but for one that withdraws, and wait until they are published."""
    bench = Bench(folder / "data")
    check(bench, folder)
    for device in DEVICES:
        settle(bench, folder, device, FINAL, withdraws=device == "d")

    def is_settled() -> bool:
        bench.as_inbox(bench.runtime.coordinator.tick)
        return all(row.changed_at is None for row in contributed(bench).values())

    wait_for(is_settled)
    check(bench, folder)
    found = {"state": digest_of_sums(bench.state()), "announced": bench.now().round}
    bench.stop()
    (folder / "found.json").write_text(json.dumps(found))


def digest_of_sums(state: bytes) -> str:
    """Return the sha256 of a state without the rules of its plan, which a server adds to what the method keeps."""
    tree = wire.decode(state, limit_bytes=len(state))
    tree.pop("rules", None)
    return wire.digest(wire.encode(tree))


def send_next(bench: Bench, folder: Path, device: str, *, withdraws: bool) -> None:
    """Send what was not acknowledged once more, or the next sums; note on the device's disk first what it will be."""
    path = folder / f"{device}.json"
    kept = json.loads(path.read_text()) if path.exists() else {"acknowledged": 0, "sending": None}
    if kept["sending"] is None:
        kept["sending"] = [kept["acknowledged"] + 1, withdraws]
        write(path, kept)
    settle(bench, folder, device, *kept["sending"])


def settle(bench: Bench, folder: Path, device: str, number: int, withdraws: bool) -> None:
    if withdraws:
        answer = bench.begin(withdrawal_parcel(bench.now(), device, number))
    else:
        answer = bench.upload(sums_parcel(bench.now(), device, number, update_id=f"u-{device}-{number}"))
    if answer.status != "accepted":
        raise AssertionError(f"{device}'s number {number} was {answer.status}: {answer.reason}")
    write(folder / f"{device}.json", {"acknowledged": number, "sending": None})


def check(bench: Bench, folder: Path) -> None:
    """Nothing that was acknowledged is lost, and the sums are those of the rows' blobs."""
    rows = contributed(bench)
    for device in DEVICES:
        path = folder / f"{device}.json"
        acknowledged = json.loads(path.read_text())["acknowledged"] if path.exists() else 0
        there = rows[device].sequence if device in rows else 0
        if there < acknowledged:
            raise AssertionError(f"{device} was told that number {acknowledged} is safe, and {there} is here")
    with bench.runtime.coordinator.lock, bench.runtime.database.read() as session:
        for found in findings.check_sums(session, bench.runtime.blobs):
            if found.level is not Severity.OK:
                raise AssertionError(found.message)


def contributed(bench: Bench) -> dict[str, ContributionRow]:
    with bench.runtime.database.read() as session:
        return {row.device.name: row for row in session.scalars(select(ContributionRow)) if row.device}


def write(path: Path, value: object) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value))
    os.replace(beside, path)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_step(number: int) -> None:
    """Kill this process before or after the so many-th commit, blob or acknowledgement."""
    left, lock = [number], threading.Lock()

    def step() -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                kill_me()

    def around(kind: type, name: str) -> None:
        do = getattr(kind, name)

        def done(*given: Any, **named: Any) -> Any:
            step()
            result = do(*given, **named)
            step()
            return result

        setattr(kind, name, done)

    for kind, name in ((BlobStore, "put"), (BlobStore, "adopt"), (Announcer, "acknowledge")):
        around(kind, name)
    for moment in ("before_commit", "after_commit"):
        event.listen(Session, moment, lambda _session: step())


if __name__ == "__main__":
    main()
