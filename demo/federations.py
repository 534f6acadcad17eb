"""The demo's two federations of the same devices: rounds of a network, and one exchange of exact sums."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import show
from edge_agent.config.settings import load
from edge_agent.storage.data_folder import require_folder
from edge_agent.transport.enrolment import Applicant, enrol
from gaitway.plain_text import toml_tables
from gaitway.terminal import Console, working
from processes import UNTIL_FINISHED, DemoError, Programs
from rest import Operator
from scenario import Plan, Scenario
from verdict import Outcome

ROUNDS, SUMS = "demo", "demo-analytic"


@dataclass(frozen=True)
class Site:
    """Where the demo runs: its programs, the server's ports and the devices."""

    console: Console
    programs: Programs
    operator: Operator
    folder: Path
    scenario: Scenario
    http_port: int
    mqtt_port: int
    pages: Mapping[str, str]  # the address of each device's own page, if it has one

    def create(self, federation: str, plan: Plan) -> None:
        """Create a federation, and enrol every device."""
        self.operator.create(federation, plan)
        for device in self.scenario.clients:
            applicant = Applicant.of(load(self._write_config(federation, device)))
            require_folder(applicant.folder)
            enrol(applicant, self.operator.enrolment_token(federation, device))

    def start_agents(self, federation: str, *options: str) -> list[str]:
        """Start the agent of every device; return the programs' names."""
        names = [f"{federation}-{device}" for device in self.scenario.clients]
        for name, device in zip(names, self.scenario.clients, strict=True):
            config = self.folder / federation / device / "agent.toml"
            self.programs.start(name, "edge_agent", "run", "--config", str(config), *options)
        return names

    def summaries(self, federation: str) -> dict[str, dict[str, Any]]:
        """Read what each agent reports about itself; an agent that hasn't reported anything is left out."""
        paths = {device: self.folder / federation / device / "summary.json" for device in self.scenario.clients}
        return {device: json.loads(path.read_bytes()) for device, path in paths.items() if path.is_file()}

    def outcome(self, federation: str, title: str, seconds: float) -> Outcome:
        """Collect what the devices have, and what the server has stored."""
        summaries = self.summaries(federation)
        if silent := set(self.scenario.clients) - set(summaries):
            raise DemoError(f"{', '.join(sorted(silent))} left no summary.json; see {self.programs.logs}")
        versions = sum(row["size"] for row in self.operator.items(federation, "models") if row["version"] > 0)
        sent = sum(row["size"] for row in self.operator.items(federation, "updates"))
        is_private = "secure" in self.operator.describe(federation)["plan"]
        return Outcome(federation, title, summaries, seconds, None if is_private else sent, versions)

    def _write_config(self, federation: str, device: str) -> Path:
        data = self.scenario
        settings = {
            "agent": {"device": device, "federation": federation, "data_dir": ".", "page": self.pages.get(device)},
            "server": {"url": f"http://127.0.0.1:{self.http_port}"},
            "broker": {"host": "127.0.0.1", "port": self.mqtt_port},
            "sensors": {"dataset": data.dataset, "root": data.root and str(data.root), "options": data.options},
            "conditions": {"ignore": ["all"]},  # several devices share this machine, which is busy with them
        }
        path = self.folder / federation / device / "agent.toml"
        path.parent.mkdir(parents=True)
        path.write_text(toml_tables(settings) + "\n")
        return path


def run_federation(site: Site, federation: str, plan: Plan) -> Outcome:
    """Let every device join, and show the progress until each uses a model of everyone's data."""
    site.create(federation, plan)
    began, shown, in_rounds = time.monotonic(), "", federation == ROUNDS
    agents = site.start_agents(federation, *([UNTIL_FINISHED] if in_rounds else []))
    with working(site.console, "waiting for devices") as update:
        for _ in site.programs.ticks(f"The federation {federation}"):
            have_ended = all(site.programs.started[name].poll() is not None for name in agents)
            is_over = have_ended if in_rounds else _has_all_sums(site)
            words, devices = site.operator.describe(federation)["summary"], site.operator.activities(federation)
            if words != shown:
                show.line(site.console, f"{time.monotonic() - began:6.1f} s  {words}")
                shown = words
            update(devices)
            if is_over or shown.startswith("stopped"):
                break
    seconds = time.monotonic() - began
    site.programs.check()
    site.programs.end(agents)
    if not shown.startswith("finished" if in_rounds else "running"):
        raise DemoError(f"{federation} did not finish ({shown}); see {site.programs.logs}")
    extent = f"{plan['rounds']['rounds']} rounds" if in_rounds else "one exchange"
    return site.outcome(federation, f"{plan['method']['name']}, {extent}", seconds)


def _has_all_sums(site: Site) -> bool:
    """Return whether every device has compared the heads of a version with all devices' sums, and uses a model."""
    state, summaries = site.operator.describe(SUMS), site.summaries(SUMS)
    devices, version = len(site.scenario.clients), state["model"]["version"]
    if min(state["continuous"]["devices"], len(summaries)) < devices:
        return False
    compared = [(summary["compared"] or {}).get("models", []) for summary in summaries.values()]
    has_judged = [any(row["round"] >= version for row in rows) for rows in compared]
    return all(has_judged) and all(summary["model"] for summary in summaries.values())
