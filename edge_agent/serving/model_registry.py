"""The models that a device stores, and changes of the current one: commit, rollback, revoke.

Kept are the last two good ones, and of each source the one that was judged last, adopted or not: it is run again
whenever another is judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from edge_agent.errors import StoreError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome, Kind
from edge_agent.storage.data_folder import move_file, sha256_of
from edge_agent.storage.state_store import REPORTED_GAINS, AdoptionRecord, StateStore
from edge_agent.training.job import CHECKPOINT, CROSS_VALIDATION, MODEL, validation_path
from federation.rounds.serving import GainSums

MODEL_KEYS = ("model", "previous")
"""Names in the store under which the last two good models are noted, the present one first."""
SOURCES: Mapping[Kind, str] = {"train": "personalized", "export": "personalized", "adopt": "global"}
NETWORK = "network"
LAST_JUDGED = ("personalized", "midway", "global", NETWORK)
"""Names in the store under which the model of each source is noted that was judged last and works."""
HEADS_IN_WORDS = {
    "shared": "shared model",
    "shared_any_orientation": "shared model for any orientation",
    "adapted": "shared model adapted to own windows",
    "personalized": "personal model",
    "personalized_any_orientation": "personal model for any orientation",
    NETWORK: "network of its own",
}
"""What the heads are called that a device chooses among, the simplest first, and the network of another federation."""
COMPARED = "compared"
"""Name in the store of what the last judgement found about all models, on the same windows."""


class Verdict(NamedTuple):
    """What was found about the candidate of a job; `model` describes it as `summary.json` does."""

    round: int
    kind: Kind
    answer: AdoptionOutcome
    reason: str
    folder: Path | None = None
    model: Mapping[str, Any] | None = None
    release: int = 0  # number of the rollout that gave it, 0: none
    against: str = ""  # sha256 of the model that was the present one then
    instead: Mapping[str, Any] | None = None  # another model of the device that is better than the present one
    compared: Mapping[str, Any] | None = None  # what was found about every model that ran
    beside: tuple[Verdict, ...] = ()  # on the other models of the same job

    @property
    def changes(self) -> bool:
        """Whether another model is used from now on."""
        return self.instead is not None or any(verdict.good for verdict in (self, *self.beside))

    @property
    def why(self) -> str:
        """The reason without the model's name and what became of it."""
        return self.reason.partition(". ")[2] or self.reason

    @property
    def shared(self) -> Verdict | None:
        """The verdict on the global model that a round began from, if there is one."""
        return next((verdict for verdict in self.beside if verdict.kind == "adopt"), None)

    @property
    def good(self) -> bool:
        """Whether it becomes the present model."""
        return self.answer == "adopted"

    @property
    def score(self) -> float | None:
        """The primary metric on the holdout; None without a holdout, or where the candidate does not run."""
        return self.model["score"] if self.model else None

    @property
    def trivial(self) -> float | None:
        """That of the task's trivial answer there; None where the holdout cannot tell."""
        return self.model["trivial"] if self.model and self.model["checked"] else None

    @property
    def source(self) -> Literal["", "personalized", "global"]:
        """Whose model it is; empty where it does not run."""
        if self.model is None:
            return ""
        return "global" if self.model["source"] == "global" else "personalized"

    @property
    def metric(self) -> str:
        """Name of the primary metric."""
        return str(self.model["metric"]) if self.model else ""


class ModelRegistry:
    """The models that a device keeps, in `folder`/models; noted in the store."""

    def __init__(self, store: StateStore) -> None:
        self.store, self.folder = store, store.folder / "models"

    def present(self) -> dict[str, Any] | None:
        """Describe the newest good model whose file is whole; None if there is none."""
        return next((model for name in MODEL_KEYS if (model := self._read(name)) and _is_whole(model)), None)

    def newest_head(self) -> dict[str, Any] | None:
        """Describe the newest good model that is a head of the federation's network; None if there is none."""
        noted = [model for name in (*MODEL_KEYS, *LAST_JUDGED) if (model := self._read(name)) and _is_whole(model)]
        return next((model for model in noted if model.get("head", NETWORK) != NETWORK), None)

    def good_models(self) -> list[dict[str, Any]]:
        """Describe the last two good models, the present one first, and whether each one's file is there."""
        present = self.present()
        used = present["sha256"] if present else None
        noted = [model for name in MODEL_KEYS if (model := self._read(name))]
        return [
            {**model, "adopted": model["sha256"] == used, "whole": Path(model["path"]).is_file()} for model in noted
        ]

    def others(self) -> list[dict[str, Any]]:
        """Describe the models that were judged last and are not the present one; of releases only the present one's."""
        now = self.present()
        release = now.get("rollout") if now else None
        noted = [model for name in LAST_JUDGED if (model := self._read(name)) and model.get("rollout") == release]
        return [model for model in noted if _is_whole(model) and (now is None or model["sha256"] != now["sha256"])]

    def compared(self) -> dict[str, Any] | None:
        """Return what the last judgement found about all models; None before any."""
        text = self.store.get(COMPARED)
        return json.loads(text) if text else None

    def reported_gains(self, command: Evaluate) -> Mapping[str, GainSums]:
        """Return what this device has added to the gains that the server sent with a candidate's version."""
        noted: dict[str, Mapping[str, GainSums]] = json.loads(self.store.get(REPORTED_GAINS) or "{}")
        return noted.get(str(command.round if command.kind == "adopt" else command.round - 1), {})

    def is_overtaken(self, verdict: Verdict) -> bool:
        """Whether a verdict would replace another model than the one that it was reached against."""
        now = self.present()
        return verdict.changes and (now["sha256"] if now else "") != verdict.against

    def commit(self, verdict: Verdict) -> None:
        """Note the verdict, move a candidate's files here if it works, and forget the files that nobody names."""
        for other in verdict.beside:
            self.commit(other)
        model, before = dict(verdict.model or {}), self.present()
        pairs = {COMPARED: json.dumps(verdict.compared)} if verdict.compared else {}
        using = verdict.instead and self._noted(verdict.instead)
        if verdict.folder and verdict.answer != "failed":
            noted = self._read(model["source"])
            # an older round's that was exported later does not displace a newer one
            last = verdict.kind != "export" or noted is None or noted["round"] < verdict.round
            if verdict.good or last:
                model |= self._place(verdict.folder, verdict.round, model["source"])
            if verdict.release:
                model["rollout"] = verdict.release
            elif before and "rollout" in before:  # an own model in the place of that release goes with it
                model["rollout"] = before["rollout"]
            if last:
                pairs[model["source"]] = json.dumps(model)
            if verdict.good:
                using = model
        if using:
            using = {**using, "why": verdict.why}
            pairs |= {"model": json.dumps(using), "previous": json.dumps(before) if before else ""}
        source = model.get("source", SOURCES[verdict.kind])
        row = AdoptionRecord(verdict.round, source, verdict.good, verdict.reason, model, time.time())
        self.store.note_adoption(row, **pairs)
        self._prune()

    def rollback(self) -> dict[str, Any]:
        """Make the good model before the present one the present one; done twice, it is undone. Returns the model.

        Raises:
            StoreError: if there is no model before the present one, or its file is gone or damaged.
        """
        now, before = (self._read(name) for name in MODEL_KEYS)
        if now is None or before is None:
            raise StoreError("there is no earlier good model to return to; the device stores the last two")
        if not _is_whole(before):
            raise StoreError(f"{before['path']} is missing or damaged; the current model stays")
        reason = f"{name_of(before)}: restored manually, in place of the {name_of(now)}"
        before = {**before, "why": reason}
        row = AdoptionRecord(before["round"], before["source"], True, reason, before, time.time())
        # what a person left does not come back by itself when others are judged
        left = {name: "" for name in LAST_JUDGED if (model := self._read(name)) and model["sha256"] == now["sha256"]}
        self.store.note_adoption(row, model=json.dumps(before), previous=json.dumps(now), **left)
        return before

    def revoke(self, release: int) -> None:
        """Forget the models of a release that was withdrawn: the one before it is used again, or none if none was."""
        left = [model for name in MODEL_KEYS if (model := self._read(name)) and model.get("rollout") != release]
        before = json.dumps(left[1]) if len(left) > 1 else ""
        shown = name_of(left[0]) if left else "none"
        round_number, source = (left[0]["round"], left[0]["source"]) if left else (0, "global")
        reason = f"release {release} was withdrawn by the server; the model in use now: {shown}"
        row = AdoptionRecord(round_number, source, bool(left), reason, left[0] if left else {}, time.time())
        now = json.dumps({**left[0], "why": reason}) if left else ""
        gone = {name: "" for name in LAST_JUDGED if (model := self._read(name)) and model.get("rollout") == release}
        self.store.note_adoption(row, model=now, previous=before, **gone)
        self._prune()

    def forget_rollouts(self) -> None:
        """Let the models be of no release any more: a server that was restored gives their numbers to others."""
        names = (*MODEL_KEYS, *LAST_JUDGED)
        noted = {name: model for name in names if (model := self._read(name)) and model.pop("rollout", None)}
        if noted:
            self.store.put(**{name: json.dumps(model) for name, model in noted.items()})

    def _read(self, name: str) -> dict[str, Any] | None:
        text = self.store.get(name)
        return json.loads(text) if text else None

    def _noted(self, model: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a model as it is noted: one that was judged in a job's folder has moved here since."""
        noted = [entry for name in (*MODEL_KEYS, *LAST_JUDGED) if (entry := self._read(name))]
        return next((entry for entry in noted if entry["sha256"] == model["sha256"]), model)

    def _place(self, folder: Path, round_number: int, source: str) -> dict[str, str]:
        sha256 = sha256_of(folder / MODEL)
        stem = f"r{round_number}-{source}-{sha256[:8]}"
        checkpoint, path = self.folder / f"{stem}.safetensors", self.folder / f"{stem}.onnx"
        if (folder / CROSS_VALIDATION).is_file():
            move_file(folder / CROSS_VALIDATION, validation_path(checkpoint))
        move_file(folder / CHECKPOINT, checkpoint)
        move_file(folder / MODEL, path)
        return {"path": str(path), "checkpoint": str(checkpoint), "sha256": sha256}

    def _prune(self) -> None:
        names = (*MODEL_KEYS, *LAST_JUDGED)
        kept = {Path(json.loads(text)["path"]).stem for name in names if (text := self.store.get(name))}
        for path in self.folder.glob("*"):
            if path.stem not in kept:
                path.unlink()


def name_of(model: Mapping[str, Any]) -> str:
    """Name a model in words."""
    if head := model.get("head"):
        if head == NETWORK:
            return f"{HEADS_IN_WORDS[NETWORK]}, of round {model['round']}"
        return f"{HEADS_IN_WORDS.get(head, head)} of version {model['round']}"
    return f"{model['source']} model of round {model['round']}"


def _is_whole(model: Mapping[str, Any]) -> bool:
    path = Path(model["path"])
    return path.is_file() and sha256_of(path) == model["sha256"]
