"""The analytic federation beside the rounds: the same devices and windows, one exchange of exact sums, no gradient."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from aggregator_api.auth.server_identity import write_secret
from federation.plan import DataSpec, ModelSpec, Plan, PublicationSettings, TrainingConfig
from models import build
from processes import Child, Children, DemoError
from rest import Operator
from scenario import Scenario, write_agent_config
from secure import enrol

FEDERATION = "demo-analytic"
LOOK_S = 0.2


class Outcome(NamedTuple):
    """What the devices of a federation had in the end: macro-F1 by device, and what it took."""

    title: str
    scores: dict[str, float | None]
    seconds: float  # from the agents' start until each device has a model that everybody's windows are in
    sent_bytes: int | None  # by all devices; None: the server does not note each of a secure sum's messages
    version_bytes: int  # of all versions; a device fetches each once, at the most


def plan_of_sums(labels: tuple[str, ...], interval_s: float | None = None) -> Plan:
    """Describe a federation that phones and boards are in: exact sums of features, and no rounds."""
    classes = len(labels)
    publication = PublicationSettings() if interval_s is None else PublicationSettings(interval_s=interval_s)
    return Plan(
        labels=labels,
        model=ModelSpec(name="har_features"),
        method={"name": "analytic"},
        training=TrainingConfig(classes=classes, feature_dim=build("har_features", classes=classes).feature_dim),
        publication=publication,
        data=DataSpec(normalization="none"),
    )


def run_exchange(
    children: Children,
    operator: Operator,
    folder: Path,
    chosen: Scenario,
    ports: tuple[int, int],
    timeout_s: float,
    plan: Plan,
) -> Outcome:
    """Let an agent for each client join a federation of its own, and end them when all use everybody's sums.

    Raises:
        DemoError: if a program fails, or the time is up.
    """
    operator.create(plan, name=FEDERATION)
    write_secret(folder / "server.key", operator.device_key(FEDERATION).encode())
    began, agents = time.monotonic(), dict[str, Child]()
    for device in chosen.clients:
        config = write_agent_config(folder / device, chosen, device, *ports, federation=FEDERATION)
        if plan.secure.is_on:
            enrol(children, operator, config, device, FEDERATION)
        agents[device] = children.start(f"analytic-{device}", "edge_agent", "run", "--config", str(config))
    version = 0
    while not version or not all(_has_judged(folder / device, version) for device in agents):
        children.check()
        version = _complete(operator, len(agents))
        if time.monotonic() - began > timeout_s:
            raise DemoError(f"{FEDERATION} is not complete after {timeout_s:.0f} s; --timeout-s allows more")
        time.sleep(LOOK_S)
    seconds = time.monotonic() - began
    children.end(list(agents.values()))
    summaries = {device: json.loads((folder / device / "summary.json").read_bytes()) for device in agents}
    return outcome("analytic, one exchange", operator, FEDERATION, summaries, seconds)


def outcome(
    title: str, operator: Operator, federation: str, summaries: dict[str, dict[str, Any]], seconds: float
) -> Outcome:
    """Say what a federation came to, by what its devices left and the server has listed."""
    scores = {device: (summary["model"] or {}).get("score") for device, summary in summaries.items()}
    is_private = operator.described(federation)["plan"].get("secure", {}).get("mode", "off") != "off"
    sent = None if is_private else sum(update["size"] for update in operator.listed("updates", federation))
    versions = sum(one["size"] for one in operator.listed("models", federation) if one["version"] > 0)
    return Outcome(title, scores, seconds, sent, versions)


def _complete(operator: Operator, devices: int) -> int:
    """Return the version that has the sums of so many devices; 0 before there is one."""
    state = operator.described(FEDERATION)
    return int(state["model"]["version"]) if state["continuous"]["devices"] >= devices else 0


def _has_judged(folder: Path, version: int) -> bool:
    """Whether a device has compared the heads of that version, or of a newer one, and uses a model."""
    path = folder / "summary.json"
    if not path.is_file():
        return False
    found: dict[str, Any] = json.loads(path.read_bytes())
    compared = found["compared"] or {"models": []}
    return bool(found["model"]) and any(row["round"] >= version for row in compared["models"])
