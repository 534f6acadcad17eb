"""An operator beside somebody who tries keys: what share of the operator's requests comes through, and how fast.

    python benchmarks/bench_limits.py --seconds 30 --json limits.json

Three ways, each with a server of its own: directly, both from one address; through nginx with
deploy/nginx/gaitway.conf, each from an address of its own; and through nginx both from one address, as behind a
company's router. The server runs with its default limits. It fails unless every request of the operator was answered
with 200 and its 99th percentile is under the limit, the wrong keys were answered with 401 and 429 alone, and the audit
tells their number in a few entries.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from bench_load import HERE, Programs, ask, free_port, wait
from rich.table import Table

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.core.settings import sqlite_url
from gaitway.terminal import Console

sys.path.insert(0, str(HERE.parent))

WRONG_PER_S = 60.0
ASKED_PER_S = 20.0
LIMIT_MS = 250.0
MAX_ENTRIES = 8
"""Of the audit, of one run: two kinds of refusals, each with its first one and one a minute."""
WRONG = f"gw_{'ab' * 6}_{'x' * 43}"
OPERATOR, THIEF = "127.0.0.5", "127.0.0.6"
"""Addresses of this machine."""


class Way(NamedTuple):
    """How both reach the server, and from where."""

    proxy: bool
    operator: str
    thief: str


WAYS = {
    "directly, one address": Way(False, OPERATOR, OPERATOR),
    "nginx, an address each": Way(True, OPERATOR, THIEF),
    "nginx, one address": Way(True, OPERATOR, OPERATOR),
}


class Client(threading.Thread):
    """Asks so many times a second on a connection that it keeps, and again after errors; late answers count as late."""

    def __init__(self, way: Way, port: int, source: str, key: str, rate: float, until: float) -> None:
        super().__init__(daemon=True)
        self.way, self.port, self.source, self.key, self.rate, self.until = way, port, source, key, rate, until
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Ask until it is over; 0 is the status of a request that was not answered."""
        due = time.perf_counter()
        while due < self.until:
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                self.statuses[self._ask()] += 1
            except (OSError, http.client.HTTPException):
                self.statuses[0] += 1
                self.connection = None
            self.seconds.append(time.perf_counter() - due)
            due += 1 / self.rate

    def _ask(self) -> int:
        if self.connection is None:
            place, given = ("127.0.0.1", self.port), {"timeout": 20, "source_address": (self.source, 0)}
            if self.way.proxy:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                self.connection = http.client.HTTPSConnection(*place, context=context, **given)
            else:
                self.connection = http.client.HTTPConnection(*place, **given)
        headers = {"Host": "gaitway.example", "Authorization": f"Bearer {self.key}"}
        self.connection.request("GET", "/v1/federations", headers=headers)
        answer = self.connection.getresponse()
        answer.read()
        if answer.headers.get("connection") == "close":
            self.connection = None
        return answer.status


def measure(way: Way, seconds: float) -> dict[str, Any]:
    """Run a server, and nginx where it is wanted, and both clients for so long."""
    with tempfile.TemporaryDirectory(prefix="gaitway-limits-") as name, Programs(Path(name)) as programs:
        return _measure(Path(name), programs, way, seconds)


def _measure(folder: Path, programs: Programs, way: Way, seconds: float) -> dict[str, Any]:
    port, front, data = free_port(), free_port(), folder / "data"
    (folder / "server.toml").write_text('trusted_proxies = ["127.0.0.1"]\n')
    words = ["serve", "--config", str(folder / "server.toml"), "--data-dir", str(data), "--port", str(port)]
    words += ["--broker-port", str(free_port())]  # there is no broker, which is no matter here
    programs.start("server", sys.executable, "-m", "aggregator_api", *words)
    url = f"http://127.0.0.1:{port}"
    wait(lambda: bool(ask(f"{url}/healthz")), "the server does not answer")
    if way.proxy:
        from tests.live.real_parts import wait_for_port
        from tests.live.test_proxies import documented_nginx

        (folder / "nginx").mkdir()
        programs.start("nginx", *documented_nginx(folder / "nginx", front, port))
        wait_for_port(front, programs["nginx"], folder / "nginx.log", within_s=20)
    key, until = (data / OPERATOR_FILE).read_text().strip(), time.perf_counter() + seconds
    where = front if way.proxy else port
    operator = Client(way, where, way.operator, key, ASKED_PER_S, until)
    thief = Client(way, where, way.thief, WRONG, WRONG_PER_S, until)
    for client in (operator, thief):
        client.start()
    for client in (operator, thief):
        client.join()
    programs["server"].terminate()  # it writes its counts into the audit
    programs["server"].wait(60)
    return {**_figures(operator, thief, seconds), **_audited(data)}


def _figures(operator: Client, thief: Client, seconds: float) -> dict[str, Any]:
    asked = sum(operator.statuses.values())
    return {
        "operator_asked": asked,
        "operator_came_through": operator.statuses[200] / asked,
        "operator_p50_ms": 1e3 * statistics.median(operator.seconds),
        "operator_p99_ms": 1e3 * statistics.quantiles(operator.seconds, n=100)[98],
        "wrong_keys_per_s": sum(thief.statuses.values()) / seconds,
        "wrong_keys": {str(status): count for status, count in sorted(thief.statuses.items())},
    }


def _audited(data: Path) -> dict[str, Any]:
    """Count what the audit tells of the wrong keys."""
    from aggregator_api.storage.db import audit
    from aggregator_api.storage.db.audit import Filters
    from aggregator_api.storage.db.database import Database

    database = Database(sqlite_url(data / "gaitway.sqlite3"))
    with database.read() as session:
        rows = session.scalars(audit.select_entries(Filters(action="access"))).all()
        found = {"audit_entries": len(rows), "audit_counted": sum(row.count for row in rows)}
    database.close()
    return found


def wrong(found: dict[str, Any], limit_ms: float) -> list[str]:
    """Say what is not as it must be."""
    said = []
    if found["operator_came_through"] < 1:
        said.append(f"only {100 * found['operator_came_through']:.1f} % of the operator's requests came through")
    if found["operator_p99_ms"] > limit_ms:
        said.append(f"the operator's 99th percentile is {found['operator_p99_ms']:.0f} ms, the limit {limit_ms:.0f} ms")
    if set(found["wrong_keys"]) != {"401", "429"}:
        said.append(f"wrong keys were answered with {found['wrong_keys']}")
    if found["wrong_keys_per_s"] < 0.95 * WRONG_PER_S:
        said.append(f"only {found['wrong_keys_per_s']:.0f} wrong keys a second were sent")
    if found["audit_entries"] > MAX_ENTRIES or found["audit_counted"] != sum(found["wrong_keys"].values()):
        said.append(f"the audit tells of {found['audit_counted']} wrong keys in {found['audit_entries']} entries")
    return said


def main() -> None:
    """Measure, print a table, write JSON, and fail if something is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each way")
    parser.add_argument("--no-limits", action="store_true", help="only measure the time: everything else still counts")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    found = {name: measure(way, given.seconds) for name, way in WAYS.items()}
    table = Table("figure", *found, title=f"an operator beside {WRONG_PER_S:.0f} wrong keys a second")
    for figure in next(iter(found.values())):
        values = [each[figure] for each in found.values()]
        table.add_row(figure, *(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)
    if given.json:
        facts = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
        given.json.write_text(json.dumps({"facts": facts, "runs": found}, indent=2) + "\n")
    limit_ms = float("inf") if given.no_limits else LIMIT_MS
    missed = [f"{name}: {words}" for name, each in found.items() for words in wrong(each, limit_ms)]
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
