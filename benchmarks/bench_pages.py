"""Processor time of the operator's pages at 10,000 devices: the first time, and again.

    python benchmarks/bench_pages.py --devices 10000 --rounds 10 --json pages.json

Every device has reported twelve figures and one adoption in each round, straight into SQLite. A page is asked for in
this process, as a browser does; its time is that of all threads. It fails if a page takes longer than the limit, and
if the charts lack a score.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table
from sqlalchemy import insert
from sqlalchemy.orm import Session

from gaitway.terminal import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation, get_federation
from aggregator_api.http.app import create_app
from aggregator_api.rollouts import scores
from aggregator_api.storage.db.models import (
    AdoptionRow,
    Base,
    DeviceRow,
    EventRow,
    FederationRow,
    MetricRow,
    ModelAliasRow,
    ModelVersionRow,
    ParticipationRow,
    RoundRow,
    UpdateRow,
)
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient
from tests.aggregator_api.web.seeded import LABELS, plan

LIMIT_MS = 300.0
NAME = "large"
HTML = {"accept": "text/html"}
AT_ONCE = 50_000
"""Rows of one statement."""
HERE = f"/federations/{NAME}"
PAGES = {
    "Overview": "/",
    "a federation": HERE,
    "its charts": f"/live{HERE}/scores",
    "its rounds": f"/live{HERE}/rounds",
    "Models": f"{HERE}/models",
    "Rollouts": f"{HERE}/rollouts",
    "a page of devices": f"{HERE}/devices",
    "a device": f"{HERE}/devices/d00007",
}


def fill(session: Session, federation: FederationRow, devices: int, rounds: int) -> None:
    """Write what so many devices would have reported."""
    now, mine = time.time(), {"federation_id": federation.id}
    row = {**mine, "state": "ready", "examples": 300, "detail": "", "enrolled_at": now, "seen_at": now}
    _write(session, DeviceRow, ({**row, "name": f"d{k:05d}", "adoption": "adopted"} for k in range(devices)))
    base = session.query(ModelVersionRow.id).filter_by(**mine).scalar()
    for number in range(1, rounds + 1):
        begun = now - 300 * (rounds - number + 1)
        counts = {"pending": 0, "received": devices, "paused": False, "deadline_passed": False, "reason": ""}
        made = RoundRow(
            **mine, **counts, number=number, phase="published", base_version_id=base, opened_at=begun,
            closed_at=begun + 200,
        )  # fmt: skip
        session.add(made)
        sha256 = f"{number:064x}"
        sums = {"state_sha256": sha256, "broadcast_sha256": sha256, "broadcast_size": 480_000}
        version = ModelVersionRow(**mine, **sums, version=number, round_number=number, created_at=begun + 200)
        session.add(version)
        session.flush()
        base = version.id
        _round(session, federation, made, devices, begun)
    for alias in ("latest", "stable"):
        session.merge(ModelAliasRow(**mine, alias=alias, version_id=base))


def _round(session: Session, federation: FederationRow, row: RoundRow, devices: int, begun: float) -> None:
    mine: dict[str, Any] = {"federation_id": federation.id}
    of_round = {**mine, "round_number": row.number, "recorded_at": begun + 100}
    ids = [found for (found,) in session.query(DeviceRow.id).filter_by(**mine)]
    part = {"round_id": row.id, "invited": True, "outcome": "received", "rounds_late": 0, "broadcast_size": 480_000}
    _write(session, ParticipationRow, ({**part, "device_id": one, "broadcast_sha256": "0" * 64} for one in ids))
    update = {**mine, "round_id": row.id, "base_round": row.number, "status": "accepted", "reason": "", "size": 480_000}
    update |= {"update_id": f"r{row.number}", "sha256": "1" * 64, "manifest": {}, "received_at": begun + 100}
    _write(session, UpdateRow, ({**update, "device_id": one} for one in ids))
    figures = ["macro_f1_before", "macro_f1_after", "train_loss", "works_before", "works_after", "macro_f1_trivial"]
    figures += [f"class_{k}_after" for k in range(len(LABELS))]
    values = ({**of_round, "device_id": one, "name": f, "value": (one % 97) / 97} for one in ids for f in figures)
    _write(session, MetricRow, values)
    for one in ids:
        scores.add_figures(session, federation.id, row.number, dict.fromkeys(figures, (one % 97) / 97))
    said = {**of_round, "source": "global", "answer": "adopted", "trivial": 0.2, "reason": ""}
    _write(session, AdoptionRow, ({**said, "device_id": one, "score": (one % 89) / 89} for one in ids))
    event = {**mine, "round_number": row.number, "device": "", "detail": "", "created_at": begun}
    events = [{**event, "kind": f"round.{phase}"} for phase in ("announced", "collecting")]
    for kind in ("update.accepted", "adoption.adopted"):
        events += [{**event, "kind": kind, "device": f"d{k:05d}"} for k in range(devices)]
    events += [{**event, "kind": f"round.{phase}"} for phase in ("aggregating", "published")]
    _write(session, EventRow, iter(events))


def _write(session: Session, table: type[Base], rows: Iterator[dict[str, Any]]) -> None:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == AT_ONCE:
            session.connection().execute(insert(table), batch)
            batch.clear()
    if batch:
        session.connection().execute(insert(table), batch)


def measure(folder: Path, devices: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds by page and by when it was asked for."""
    settings = Settings(data_dir=folder, aggregation_process=False, offline_timeout_s=1e9)
    app = create_app(settings, Wires)
    with OperatorClient(app) as client:
        client.runtime.federations.create(NewFederation(name=NAME, plan=plan()))
        with client.runtime.database.write() as session:
            fill(session, get_federation(session, NAME), devices, rounds)
            get_federation(session, NAME).status = "finished"
        client.get("/new-federation", headers=HTML)  # templates are compiled
        if None in client.get(f"/live{HERE}/scores").json()["mean"]:
            raise SystemExit("the charts lack scores")
        return {name: {when: _ms(client, path) for when in ("first", "again")} for name, path in PAGES.items()}


def _ms(client: OperatorClient, path: str) -> float:
    begun = time.process_time()
    answer = client.get(path, headers=HTML)
    took = time.process_time() - begun
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.status_code}")
    return 1e3 * took


def main() -> None:
    """Measure, print a table, write JSON, and fail if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--no-limits", action="store_true", help="only measure")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gaitway-pages-") as name:
        found = measure(Path(name), given.devices, given.rounds)
    columns = list(next(iter(found.values())))
    table = Table("page, ms of processor time", *columns, title=f"{given.devices} devices, {given.rounds} rounds")
    for page, times in found.items():
        table.add_row(page, *(f"{times[column]:.0f}" for column in columns))
    Console().print(table)
    if given.json:
        facts = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
        given.json.write_text(json.dumps({"facts": facts, "pages": found}, indent=2) + "\n")
    times_of = [(page, when, ms) for page, each in found.items() for when, ms in each.items()]
    slow = [f"{page}, {when}: {ms:.0f} ms" for page, when, ms in times_of if ms > LIMIT_MS]
    if slow and not given.no_limits:
        raise SystemExit(f"longer than {LIMIT_MS:.0f} ms: " + "; ".join(slow))


if __name__ == "__main__":
    main()
