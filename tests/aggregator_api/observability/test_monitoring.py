"""The files for Prometheus and Grafana: every figure that they name is one that a server or a device really shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator_api.core.settings import Settings
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.maintenance.backup import back_up
from aggregator_api.operations.health import file_expiry
from aggregator_api.storage.db.models import CredentialRow, EnrolmentTokenRow
from aggregator_api.transport.mqtt.mosquitto.certificates import issue, make_authority
from aggregator_api.transport.mqtt.mosquitto.folders import issue_for_server
from edge_agent.machine.state import Agent
from edge_agent.supervisor.metrics import gauges, render
from federation.protocol import topics
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Wires, status, tiny_plan
from tests.aggregator_api.http_client import OperatorClient

FILES = Path(__file__).parents[3] / "deploy" / "monitoring"
DAY = 86_400.0
NAME = re.compile(r"\b(?:gaitway|process)_[a-z_0-9]+")


class WithCertificate(Wires):
    """A broker that has shown a certificate."""

    def certificate_expiry(self) -> float | None:
        return time.time() + 100 * DAY


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """/metrics of a server after a round, with keys and tokens that expire, an adoption and a rollout."""
    folder = tmp_path_factory.mktemp("monitored")
    (folder / "ca.pem").write_bytes(make_authority("walk", days=30).certificate)
    own = issue_for_server(folder / "own", ["localhost"], days=20)
    settings = Settings(
        data_dir=folder / "data",
        aggregation_process=False,
        mqtt_ca_file=folder / "ca.pem",
        tls_cert_file=own.certificate,
        tls_key_file=own.key,
        https_port=8443,
    )
    with OperatorClient(create_app(settings, WithCertificate)) as client:
        bench = Bench.__new__(Bench)
        assert isinstance(client.runtime.transport, Wires)
        bench.runtime, bench.wires = client.runtime, client.runtime.transport
        plan = tiny_plan(rounds=2, clients=None, deadline_s=3600)
        client.runtime.federations.create(NewFederation(name=FEDERATION, plan=plan))
        _expiring(bench)
        for device in ("a", "b"):
            bench.send(topics.status(FEDERATION, device), status("ready"))
        for device in ("a", "b"):
            assert bench.upload(bench.update_of(device)).status == "accepted"
        wait_for(lambda: bench.collects(2))
        back_up(settings, folder / "backup")
        yield client.get("/metrics").text


def _expiring(bench: Bench) -> None:
    now = time.time()
    with bench.runtime.database.write() as session:
        for n, (scope, days) in enumerate((("operator", 5), ("operator", 50), ("read", 9))):
            session.add(_key(f"k{n}", [scope], now + days * DAY))
        session.add(_key("old", ["operator"], now - DAY))
        session.add(
            EnrolmentTokenRow(
                federation_id=1, token_sha256="0" * 64, auto_approve=False, created_at=now, expires_at=now + 2 * DAY
            )
        )


def _key(prefix: str, scopes: list[str], expires_at: float) -> CredentialRow:
    return CredentialRow(
        prefix=prefix, name="", scopes=scopes, secret_sha256="0" * 64, created_at=0.0, expires_at=expires_at
    )


def named(text: str) -> dict[str, set[str]]:
    """Return the names of samples and their labels, as a query sees them; what was declared without a sample too."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        for suffix in suffixes:
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def shown(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    device = render(gauges(Agent(), tmp_path_factory.mktemp("device"))).decode()
    return {**named(device), **named(server)}


def expressions() -> dict[str, str]:
    """Return every query of both files, by where it stands."""
    alerts = re.findall(r"alert: (\w+)\n\s+expr: (\|\n(?:\s{10,}.*\n)+|.*\n)", (FILES / "alerts.yaml").read_text())
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    queries = {f"{panel['title']} {t['refId']}": t["expr"] for panel in panels for t in panel.get("targets", ())}
    return {**dict(alerts), **queries}


def test_every_figure_that_is_asked_for_is_shown(shown: dict[str, set[str]]) -> None:
    asked = {(where, name) for where, query in expressions().items() for name in NAME.findall(query)}
    assert len(asked) > 60
    assert {(where, name) for where, name in asked if name not in shown} == set()


def test_a_typing_error_would_be_noticed(shown: dict[str, set[str]]) -> None:
    assert "gaitway_rounds_total" in shown
    assert "gaitway_round_total" not in shown
    assert "gaitway_rounds" not in shown


def test_every_label_that_is_asked_for_is_there(shown: dict[str, set[str]]) -> None:
    from_scrape = {"job", "instance"}
    for where, query in expressions().items():
        for name, selector in re.findall(r"\b((?:gaitway|process)_[a-z_0-9]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)\s*=~?", selector)) - from_scrape
            assert not shown[name] or labels <= shown[name], (where, name)


def test_what_expires_is_told(server: str) -> None:
    figures = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(server)
        for sample in family.samples
    }
    now = time.time()
    days = {key: (value - now) / DAY for key, value in figures.items() if "expiry" in key[0]}
    assert days["gaitway_certificate_expiry_timestamp_seconds", "broker"] == pytest.approx(100, abs=0.1)
    assert days["gaitway_certificate_expiry_timestamp_seconds", "broker_authority"] == pytest.approx(30, abs=0.1)
    assert days["gaitway_certificate_expiry_timestamp_seconds", "https"] == pytest.approx(20, abs=0.1)
    assert days["gaitway_key_expiry_timestamp_seconds", "operator"] == pytest.approx(5, abs=0.1)
    assert days["gaitway_key_expiry_timestamp_seconds", "read"] == pytest.approx(9, abs=0.1)
    assert ("gaitway_key_expiry_timestamp_seconds", "device") not in figures
    assert figures["gaitway_keys", "read"] == 1
    assert days["gaitway_enrolment_token_expiry_timestamp_seconds", FEDERATION] == pytest.approx(2, abs=0.1)
    assert days["gaitway_signature_expiry_timestamp_seconds",] == pytest.approx(30, abs=0.1)
    assert figures["gaitway_last_backup_timestamp_seconds",] == pytest.approx(now, abs=120)
    assert figures["gaitway_open_round_deadline_timestamp_seconds", FEDERATION] == pytest.approx(now + 3600, abs=120)
    assert figures["gaitway_database_up",] == 1
    assert figures["gaitway_federation_running", FEDERATION] == 1
    assert figures["gaitway_devices_online", FEDERATION] == 2


def test_of_several_certificates_in_a_file_the_first_to_expire_counts(tmp_path: Path) -> None:
    authority = make_authority("walk", days=30)
    path = tmp_path / "both.pem"
    path.write_bytes(authority.certificate + issue(authority, ["h"], days=3).certificate)
    found = file_expiry(path)
    assert found is not None
    assert (found - time.time()) / DAY == pytest.approx(3, abs=0.1)
    assert file_expiry(tmp_path / "none.pem") is None


def test_a_database_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    def away() -> None:
        raise OperationalError("SELECT", {}, Exception("gone"))

    with OperatorClient(create_app(Settings(data_dir=tmp_path, aggregation_process=False), Wires)) as client:
        rendered = client.app.state.metrics.render
        monkeypatch.setattr(client.runtime.database, "read", away)
        text = rendered().decode()
        monkeypatch.undo()
        assert "gaitway_database_up 0.0" in text
        assert "gaitway_broker_up 1.0" in text
        assert "gaitway_database_up 1.0" in rendered().decode()


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    dashboard: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert [target["refId"] for target in panel["targets"]] == list("ABCD"[: len(panel["targets"])])
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables


def test_prometheus_accepts_the_rules_and_the_dashboards_queries_and_alerts_fire_when_they_should(
    tmp_path: Path,
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine (Debian's package prometheus)")
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    queries = [target["expr"].replace("$", "") for panel in panels for target in panel.get("targets", ())]
    rules = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(queries)]
    asked = tmp_path / "queries.yaml"  # JSON is YAML
    asked.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for words in (["check", "rules", "alerts.yaml", str(asked)], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([promtool, *words], cwd=FILES, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
