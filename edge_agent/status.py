"""What a device does and has done: one JSON file beside its database for programs, sentences for people."""

from __future__ import annotations

import json
import time
from typing import Any

from edge_agent.machine.memory import restored_words
from edge_agent.machine.state import Agent, Stage, status_of
from edge_agent.serving.acceptance import Shelf
from edge_agent.serving.classifier import live_words
from edge_agent.serving.released_models import kept_adoption, release_words
from edge_agent.storage.files import without_room, write_file
from edge_agent.storage.state_store import RoundRow, Store

FILE_NAME = "summary.json"
SCORES = ("macro_f1_before", "macro_f1_after", "accuracy_before", "accuracy_after", "train_loss")


def summary(store: Store, device: str) -> dict[str, Any]:
    """Describe the device; a score is None where it had no holdout windows, the model where none was good yet.

    `judged` is the last judgement of a candidate, and `not_adopted` its reason unless it was adopted.
    """
    trained = sorted((row for row in store.rounds() if row.update_id), key=lambda row: (row.epoch, row.round))
    judged = kept_adoption(store)
    return {
        "device": device,
        "rounds": [_round(row) for row in trained],
        "model": Shelf(store).present(),
        "judged": judged and judged.model_dump(exclude={"instance"}),
        "not_adopted": judged.reason if judged and judged.answer != "adopted" else None,
        "adoption": [row.reason for row in store.adoptions()],
    }


def write_summary(store: Store, device: str) -> None:
    """Replace summary.json."""
    with without_room(FILE_NAME):
        write_file(store.folder / FILE_NAME, (json.dumps(summary(store, device), indent=2) + "\n").encode())


def in_short(agent: Agent) -> str:
    """Say in a few words what the device is doing."""
    status = status_of(agent)
    where = f" in round {status.round}" if status.round else ""
    words = f"{status.state}{where}" + (f" ({status.detail})" if status.detail else "")
    without = f"{words}, without a connection to the broker"
    return words if agent.connected else without + (f": {agent.trouble}" if agent.trouble else "")


def note_doing(store: Store, agent: Agent, *, left: bool = False) -> None:
    """Keep in one sentence what the device is doing, for whoever asks the database."""
    words = in_short(agent)
    hold = () if agent.work and agent.work.stage is Stage.HELD else agent.hold  # else it is among the words
    with without_room("what the device is doing"):
        store.put(doing=json.dumps({"words": words, "left": left, "at": time.time(), "hold": hold}))


def in_words(store: Store, device: str, *, running: bool) -> list[str]:
    """Say what the device is doing, what waits, and what it has."""
    text = store.get("doing")
    if not text:
        return [f"{device} has not done anything yet."]
    doing = json.loads(text)
    age_s = max(0.0, time.time() - doing["at"])
    waiting = len(store.outbox())
    verb = "is" if running else "was" if doing["left"] else "was ended from outside while it was"
    rest = "" if running else " It does not run now."
    return [
        f"{device} {verb} {doing['words']} (said {age_s:.0f} s ago).{rest}",
        *([f"It would not train now: {'; '.join(doing['hold'])}."] if running and doing.get("hold") else []),
        f"{waiting} of its updates wait for the server's answer." if waiting else "No update waits for an answer.",
        *filter(None, [restored_words(store)]),
        *release_words(store, device),
        *_left_alone(store),
        *(live_words(store.folder) if running else []),
        *(f"Round {row.round} was left out: {row.reason}." for row in store.rounds() if row.status == "left out"),
    ]


def _left_alone(store: Store) -> list[str]:
    judged = kept_adoption(store)
    if judged is None or judged.answer == "adopted":
        return []
    return [f"The last model that it might have used {_WHY[judged.answer]}: {judged.reason}."]


_WHY = {
    "refused": "is worse than its present one",
    "failed": "does not work",
    "undecided": "could not be checked, neither here nor by the server's score",
}


def _round(row: RoundRow) -> dict[str, Any]:
    metrics = row.result.get("metrics", {})
    scores = {name: metrics.get(name) for name in SCORES}
    return {"round": row.round, **scores, "seconds": row.result.get("seconds"), "status": row.status}
