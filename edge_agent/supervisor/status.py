"""A device's status and history: a JSON file next to its database for programs, sentences for people."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import StoreError
from edge_agent.machine.releases import offered_to, valid_offer
from edge_agent.machine.state import Agent, Stage, status_of
from edge_agent.serving.classifier import describe_live
from edge_agent.serving.model_registry import ModelRegistry, name_of
from edge_agent.storage.consent import (
    HOME_ASSISTANT_PROBLEM,
    can_withdraw,
    describe_refusal,
    home_assistant_is_off,
    participation,
)
from edge_agent.storage.data_folder import tolerate_full_disk, write_file
from edge_agent.storage.repair import DAMAGED_FILE
from edge_agent.storage.state_store import RememberedRound, StateStore
from edge_agent.storage.window_store import FILE_NAME as WINDOWS_FILE
from edge_agent.storage.window_store import SKIPPED, UNLABELLED, WindowStore
from federation.protocol.messages import DEFAULT_METRIC, AdoptionReport, Release, ReleaseReport
from gaitway.tasks import TASKS
from gaitway.threads import ThreadFailure, thread_failures

FILE_NAME = "summary.json"
MAX_LEFT_OUT = 5


def summary(store: StateStore, device: str) -> dict[str, Any]:
    """Describe the device; a score is None where it had no holdout windows, the model where none was good yet.

    `participation` is the person's wish. `judged` is the last judgement of a candidate, and `not_adopted` its reason
    unless it was adopted; `compared` is what it found about all models of the device on the same windows, None before
    the first.
    """
    trained = sorted((row for row in store.rounds() if row.update_id), key=lambda row: (row.epoch, row.round))
    judged, registry = store.adoption_report(), ModelRegistry(store)
    return {
        "device": device,
        "rounds": [_round(row) for row in trained],
        "model": registry.present(),
        "serving": describe_served(store),
        "compared": _compared(registry),
        "participation": {**participation(store)._asdict(), "can_withdraw": can_withdraw(store)},
        "judged": judged and judged.model_dump(exclude={"instance"}),
        "not_adopted": judged.reason if judged and judged.answer != "adopted" else None,
        "adoption": [row.reason for row in store.adoptions()],
    }


def _compared(registry: ModelRegistry) -> dict[str, Any] | None:
    found, present = registry.compared(), registry.present()
    if found is None:
        return None
    used = present["sha256"] if present else None
    rows = [{**row, "in_use": row["sha256"] == used} for row in found["models"]]
    return {**found, "models": sorted(rows, key=lambda row: not row["in_use"])}


def write_summary(store: StateStore, device: str) -> None:
    """Replace summary.json."""
    with tolerate_full_disk(FILE_NAME):
        write_file(store.folder / FILE_NAME, (json.dumps(summary(store, device), indent=2) + "\n").encode())


def short_status(agent: Agent) -> str:
    """Say in a few words what the device is doing."""
    status = status_of(agent)
    where = f" in round {status.round}" if status.round else ""
    words = f"{status.state}{where}" + (f" ({status.detail})" if status.detail else "")
    without = f"{words}, without a connection"
    return words if agent.connected else without + (f": {agent.connection_error}" if agent.connection_error else "")


def save_activity(store: StateStore, agent: Agent, *, left: bool = False) -> None:
    """Keep in one sentence what the device is doing, for whoever asks the database."""
    words = short_status(agent)
    blockers = () if agent.work and agent.work.stage is Stage.BLOCKED else agent.blockers  # else it is among the words
    with tolerate_full_disk("what the device is doing"):
        doing = {"words": words, "left": left, "at": time.time(), "blockers": blockers}
        store.put(doing=json.dumps({**doing, "failures": [asdict(failure) for failure in thread_failures.recent()]}))


def describe_device(store: StateStore, device: str, *, running: bool) -> list[str]:
    """Say what the device is doing, what waits, and what it has."""
    text = store.get("doing")
    if not text:
        return [f"{device} has not done anything yet."]
    doing = json.loads(text)
    age_s = max(0.0, time.time() - doing["at"])
    waiting = len(store.outbox())
    verb = "is" if running else "was" if doing["left"] else "was ended from outside while it was"
    rest = "" if running else " It isn't running."
    return [
        f"{device} {verb} {doing['words']} (said {age_s:.0f} s ago).{rest}",
        *([f"It can't train now: {'; '.join(doing['blockers'])}."] if running and doing.get("blockers") else []),
        f"{waiting} of its updates wait for the server's answer." if waiting else "No update is waiting for an answer.",
        *(ThreadFailure(**failure).describe(time.time()) for failure in doing.get("failures", []) if running),
        *filter(None, [describe_restore(store), describe_participation(store), describe_refusal(store)]),
        *_trained_by(store),
        describe_served(store),
        *describe_release(store, device),
        *_left_alone(store),
        *(describe_live(store.folder) if running else []),
        *(_home(store) if running else []),
        *(f"Round {row.round} was skipped: {row.reason}." for row in store.rounds() if row.status == "left out"),
    ]


def _home(store: StateStore) -> list[str]:
    problem = store.get(HOME_ASSISTANT_PROBLEM)
    if not problem or home_assistant_is_off(store):
        return []
    return [f"Reports to Home Assistant fail: {problem}; the device retries automatically."]


def describe_participation(store: StateStore) -> str:
    """Say that the person has withdrawn this device, and what became of it; empty while it takes part."""
    wish = participation(store)
    return "" if wish.takes_part else wish.words


def describe_served(store: StateStore) -> str:
    """Say which model the device uses, and why."""
    present = ModelRegistry(store).present()
    if present is None:
        return (
            "It uses no model yet: the federation's comes once one was trained and half a minute of motion was "
            "recorded here, and the device may work."
        )
    why = present.get("why")
    return f"It uses the {name_of(present)}." + (f" {why.rstrip('.')}." if why else "")


def _trained_by(store: StateStore) -> list[str]:
    """Say on what the last round was trained, where there is more to it than the CPU."""
    trained = max(
        (row for row in store.rounds() if row.update_id), key=lambda row: (row.epoch, row.round), default=None
    )
    words = trained.result.get("placement") if trained else ""
    return [f"Its last round was trained {words}."] if words else []


def _left_alone(store: StateStore) -> list[str]:
    judged = store.adoption_report()
    if judged is None or judged.answer == "adopted":
        return []
    return [f"The last model that it might have used {_WHY[judged.answer]}: {judged.reason}."]


_WHY = {
    "kept": "works, but another one is expected to be better",
    "refused": "is worse than its current one",
    "failed": "does not work",
    "undecided": "could not be checked, neither here nor by the server's score",
}


def _round(row: RememberedRound) -> dict[str, Any]:
    metrics, metric = row.result.get("metrics", {}), row.result.get("metric", DEFAULT_METRIC)
    measured = [name for task in TASKS.values() if metric in task.metric_kinds for name in task.metric_kinds]
    names = [f"{name}_{when}" for name in measured for when in ("before", "after")]
    scores = {name: metrics.get(name) for name in (*names, "train_loss")}
    return {
        "round": row.round,
        "metric": metric,
        **{f"score_{when}": metrics.get(f"{metric}_{when}") for when in ("before", "after")},
        **scores,
        "seconds": row.result.get("seconds"),
        "processor": row.result.get("processor", "cpu"),
        "status": row.status,
    }


class CollectedWindows(NamedTuple):
    """Counts, and sentences about them and about what keeps the device from collecting."""

    labelled: int
    unlabelled: int
    words: list[str]


def collected_windows(folder: Path, limits: WindowsSection) -> CollectedWindows:
    """Look at the windows in a data folder; none is no error."""
    labelled, unlabelled, reads = 0, 0, ""
    words: list[str] = []
    left_out: list[str] = []
    noted: list[list[str]] = []
    if (folder / WINDOWS_FILE).is_file():
        try:
            with closing(WindowStore(folder)) as store:
                counts, reads = store.counts(), store.get("reads")
                left_out = _left_out(store)
                noted = json.loads(store.get("findings") or "[]")
        except StoreError as error:
            return CollectedWindows(0, 0, [f"Its windows cannot be read: {error}.", *_obstacles(folder, limits)])
        unlabelled = counts.pop(UNLABELLED, 0)
        labelled = sum(counts.values())
    what, label = ("images", "a class") if reads == "images" else ("windows", "an activity")
    rest = f", and {unlabelled:,} without {label}" if unlabelled else ""
    words.append(f"It keeps {labelled:,} labelled {what}{rest}.")
    words += [f"Its samples look wrong: {message}." for severity, message in noted if severity != "note"]
    return CollectedWindows(labelled, unlabelled, words + left_out + _obstacles(folder, limits))


def _left_out(store: WindowStore) -> list[str]:
    """Say which recorded files were left out, and why."""
    skipped = json.loads(store.get(SKIPPED) or "{}")
    reasons = [f"Left out of {name}: {reason}." for name, found in skipped.items() for reason in found]
    more = len(reasons) - MAX_LEFT_OUT
    return reasons[:MAX_LEFT_OUT] + ([f"And {more} more were left out; `doctor` lists them."] if more > 0 else [])


def _obstacles(folder: Path, limits: WindowsSection) -> list[str]:
    found = []
    free = shutil.disk_usage(folder).free / 1e6
    if free < limits.min_free_mb:
        found.append(
            f"It does not collect: its disk has {free:.0f} MB of free space and [windows] min_free_mb asks for "
            f"{limits.min_free_mb:.0f}; it goes on by itself when there is room."
        )
    if (folder / DAMAGED_FILE).is_file():
        found.append(f"A damaged file of windows was set aside as {DAMAGED_FILE}; delete it when you don't need it.")
    return found


def describe_restore(store: StateStore) -> str:
    """Say that the server was restored, and from where on this device trains again; empty if it never was."""
    text = store.get("restored")
    if not text:
        return ""
    known = json.loads(text)
    at = time.strftime(" on %Y-%m-%d %H:%M:%S UTC", time.gmtime(known["at"])) if known["at"] else ""
    return (
        f"The server was restored from a backup{at}, when it began epoch {known['epoch']}: it stood at round "
        f"{known['round']} then, while this device had trained up to round {known['trained']}. "
        f"The device trains again what the server asks for."
    )


def describe_release(store: StateStore, device: str) -> list[str]:
    """Say which release the device uses, and what it waits for; nothing where nothing was ever released."""
    order, report, present = store.release_order(), store.release_report(), ModelRegistry(store).present()
    if order is None:
        return []
    using = present.get("rollout", 0) if present else 0
    words = [f"It uses the model of release {using}." if using else "It uses no released model."]
    offer = valid_offer(store.release_offer(), store.get("identity").partition("/")[0], store.epoch)
    offered = offered_to(device, order, offer)
    if offered and offered.rollout != using:
        words.append(_about(offered, report, store.adoption_report()))
    if order.candidate and order.candidate != offered:
        share = (
            f"{order.share_millionths / 10_000:g} % of the devices" if order.share_millionths else "groups of devices"
        )
        words.append(f"{_named(order.candidate)} goes to {share} for now; this device waits for its wave.")
    return words


def _about(offered: Release, report: ReleaseReport | None, judged: AdoptionReport | None) -> str:
    if report and report.rollout == offered.rollout:
        reason = f": {report.reason}" if report.reason else ""
        return f"{_named(offered)} is for it, and was {_DONE[report.answer]}{reason}."
    undecided = judged and (judged.round, judged.source, judged.answer) == (offered.round, "global", "undecided")
    if undecided and offered.model.score is None:
        return f"{_named(offered)} is for this device, and waits for scores from devices that can check it."
    return f"{_named(offered)} is for it; it is taken up when there is no round to train, and the device may work."


_DONE = {"adopted": "adopted", "refused": "refused", "failed": "given up", "rolled_back": "left again"}


def _named(release: Release) -> str:
    return f"Release {release.rollout} (version {release.version})"
