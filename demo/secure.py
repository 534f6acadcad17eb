"""The demo with secure sums: plans that ask for them, devices that sign, and what the server saw and made of it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import torch

from aggregator_api.auth.server_identity import write_secret
from federation import wire
from federation.plan import Plan, SecureSettings
from federation.records import Tree
from federation.records.tree import flatten
from gaitway.terminal import Console
from processes import Children, DemoError
from rest import Operator
from scenario import Scenario
from sim.experiment.settings import Experiment
from sim.run import build_simulation, load_data, resolve

ENROL_S = 60.0
MIN_DEVICES = 3
ONE_STEP = {"fedali": {"clustering": "one_step"}}
"""How a method is set so that its server half is a sum."""


def plans(rounds: Plan, sums: Plan, devices: int, private: bool) -> tuple[Plan, Plan]:
    """Return the plans of the demo's two federations, with secure sums if they are wanted."""
    return (secured(rounds, devices), secured(sums, devices)) if private else (rounds, sums)


def secured(plan: Plan, devices: int) -> Plan:
    """Return the plan with secure sums of all devices, and without the rules that judge single updates.

    Raises:
        DemoError: if they are too few for a sum.
    """
    if devices < MIN_DEVICES:
        raise DemoError(f"--private: no sum is of fewer than {MIN_DEVICES} devices; --devices {devices} are too few")
    unjudged = {"max_weight_ratio": None, "norm_factor": None, "minimum_clients": devices}
    method = {**plan.method, **ONE_STEP.get(str(plan.method["name"]), {})}
    rounds, secure = plan.rounds.model_copy(update=unjudged), SecureSettings(mode="masked", min_devices=devices)
    return plan.model_copy(update={"rounds": rounds, "method": method, "secure": secure})


def enrol(children: Children, operator: Operator, config: Path, device: str, federation: str) -> None:
    """Let a device have a key of its own, which signs what it says in a sum.

    Raises:
        DemoError: if it is not let in.
    """
    token = config.with_name("token")
    write_secret(token, operator.enrolment_token(federation, device).encode())
    command = ("enrol", "--config", str(config), "--token-file", str(token))
    child = children.start(f"enrol-{federation}-{device}", "edge_agent", *command)
    code = child.process.wait(ENROL_S)
    children.end([child])
    if code != 0:
        raise DemoError(f"{device} cannot enrol: {child.log_tail()}")


def say_what_was_seen(console: Console, database: Path, federations: list[str]) -> bool:
    """Print what the server's own database has of single devices; whether it is nothing that they have learnt."""
    found = {name: seen(database, name) for name in federations}
    for name, counts in found.items():
        summed, devices = counts.pop("sums"), counts.pop("devices")
        rest = ", ".join(f"{count} {what}" for what, count in counts.items())
        sums = "1 sum" if summed == 1 else f"{summed} sums"
        words = f"{name}: the server has {sums} of {devices} devices; of single devices {rest}."
        console.print(words, soft_wrap=True, highlight=False)
    return not any(sum(counts.values()) for counts in found.values())


def seen(database: Path, federation: str) -> dict[str, int]:
    """Count, in the server's database, the sums of a federation and what is there of one device's learning."""
    with sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30) as connection:

        def count(query: str) -> int:
            return int(connection.execute(query, (federation,)).fetchone()[0] or 0)

        of = "JOIN federations f ON f.id = {}.federation_id WHERE f.name = ?"
        sums = "FROM secure_sums s JOIN rounds r ON r.id = s.round_id JOIN federations f ON f.id = r.federation_id"
        return {
            "sums": count(f"SELECT count(*) {sums} WHERE f.name = ? AND s.stage = 'done'"),
            "devices": count(f"SELECT min(s.summed_devices) {sums} WHERE f.name = ? AND s.stage = 'done'"),
            "updates": count(
                f"SELECT count(*) FROM updates u {of.format('u')} AND json_extract(u.manifest, '$.sum') IS NULL"
            ),
            "sums of features": count(f"SELECT count(*) FROM contributions c {of.format('c')}"),
            "counts of windows": count(f"SELECT count(*) FROM devices d {of.format('d')} AND d.examples > 1"),
            "scores": count(f"SELECT count(*) FROM metrics m {of.format('m')}"),
        }


def is_that_in_the_open(console: Console, operator: Operator, plan: Plan, chosen: Scenario, federation: str) -> bool:
    """Simulate the same devices and seeds without masks, and compare the last model with it, bit for bit."""
    with console.status(f"{federation} again without masks, in a simulation"):
        wanted = in_the_open(plan, chosen)
    newest = max(operator.listed("models", federation), key=lambda one: int(one["version"]))
    data = operator.blob(newest["sha256"])
    live, expected = flatten(wire.decode(data, limit_bytes=len(data))), flatten(wanted)
    differing = sorted(name for name in {*live, *expected} if not _equal(live.get(name), expected.get(name)))
    numbers = sum(value.numel() for value in expected.values())
    words = f"its model, {numbers:,} numbers, is that of the simulation without masks, bit for bit"
    if differing:
        words = f"its model differs from that of the simulation without masks: {', '.join(differing)}"
    console.print(f"{federation}: {words}.", soft_wrap=True, highlight=False)
    return not differing


def in_the_open(plan: Plan, chosen: Scenario) -> Tree:
    """Return the broadcast that a simulation ends with which adds the same whole numbers without masks."""
    torch.set_num_threads(1)  # as on a device
    described = plan.model_dump(mode="json")
    described["secure"]["mode"] = "clear"
    if plan.method["name"] == "analytic":
        described["rounds"]["rounds"] = 1
    options = {"dataset": chosen.dataset, "dataset_options": chosen.options, "engine": "serial"}
    settings = Experiment.model_validate({**described, **options, "validation_share": 0.0})
    data = load_data(resolve(settings), chosen.root, None, None)
    clients = {name: data.clients[name] for name in chosen.clients}
    simulation = build_simulation(resolve(settings), replace(data, clients=clients))
    for _record in simulation.run_rounds():
        pass
    return simulation.setup.method.broadcast(simulation.state, "")


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and torch.equal(one, other)
