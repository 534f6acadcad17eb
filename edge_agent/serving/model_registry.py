"""The last two good models of a device, and how the present one changes: commit, rollback, revoke."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.errors import StoreError
from edge_agent.machine.events import AdoptionOutcome, Kind
from edge_agent.storage.files import move_file, sha256_of
from edge_agent.storage.state_store import AdoptionRow, StateStore
from edge_agent.training.job import CHECKPOINT, MODEL

MODEL_KEYS = ("model", "previous")
"""Names in the store under which the last two good models are noted, the present one first."""
SOURCES: Mapping[Kind, str] = {"train": "personalized", "adopt": "global"}


class Verdict(NamedTuple):
    """What was found about the candidate of a job; `model` describes it as `summary.json` does."""

    round: int
    kind: Kind
    answer: AdoptionOutcome
    reason: str
    folder: Path | None = None
    model: Mapping[str, Any] | None = None
    release: int = 0  # number of the rollout that gave it, 0: none

    @property
    def good(self) -> bool:
        """Whether it becomes the present model."""
        return self.answer == "adopted"

    @property
    def score(self) -> float | None:
        """Macro-F1 on the holdout; None without a holdout, or where the candidate does not run."""
        return self.model["macro_f1"] if self.model else None

    @property
    def most_frequent(self) -> float | None:
        """Macro-F1 there of always answering the most frequent class; None where the holdout cannot tell."""
        return self.model["most_frequent"] if self.model and self.model["checked"] else None


class ModelRegistry:
    """The last two good models of a device, in `folder`/models; noted in the store."""

    def __init__(self, store: StateStore) -> None:
        self.store, self.folder = store, store.folder / "models"

    def present(self) -> dict[str, Any] | None:
        """Describe the newest good model whose file is whole; None if there is none."""
        return next((model for name in MODEL_KEYS if (model := self._read(name)) and _is_whole(model)), None)

    def commit(self, verdict: Verdict) -> None:
        """Note the verdict; move a good candidate's files here and forget all but the last two models."""
        pairs: dict[str, str] = {}
        model = dict(verdict.model or {})
        if verdict.good and verdict.folder:
            before = self.present()
            model = {**self._place(verdict.folder, verdict.round, model["source"]), **model}
            if verdict.release:
                model["rollout"] = verdict.release
            pairs = {"model": json.dumps(model), "previous": json.dumps(before) if before else ""}
        row = AdoptionRow(verdict.round, SOURCES[verdict.kind], verdict.good, verdict.reason, model, time.time())
        self.store.note_adoption(row, **pairs)
        self._prune()

    def rollback(self) -> dict[str, Any]:
        """Make the good model before the present one the present one; done twice, it is undone. Returns the model.

        Raises:
            StoreError: if there is no model before the present one, or its file is gone or damaged.
        """
        now, before = (self._read(name) for name in MODEL_KEYS)
        if now is None or before is None:
            raise StoreError("there is no earlier good model to go back to; the device keeps the last two")
        if not _is_whole(before):
            raise StoreError(f"{before['path']} is gone or damaged; the present model stays")
        reason = f"{_name(before)}: taken back by hand, in place of the {_name(now)}"
        row = AdoptionRow(before["round"], before["source"], True, reason, before, time.time())
        self.store.note_adoption(row, model=json.dumps(before), previous=json.dumps(now))
        return before

    def revoke(self, release: int) -> None:
        """Forget the models of a release that was withdrawn: the one before it is used again, or none if none was."""
        left = [model for name in MODEL_KEYS if (model := self._read(name)) and model.get("rollout") != release]
        now, before = [*map(json.dumps, left), "", ""][:2]
        shown = _name(left[0]) if left else "none"
        round_number, source = (left[0]["round"], left[0]["source"]) if left else (0, "global")
        reason = f"release {release} was withdrawn by the server; the model in use now: {shown}"
        row = AdoptionRow(round_number, source, bool(left), reason, left[0] if left else {}, time.time())
        self.store.note_adoption(row, model=now, previous=before)
        self._prune()

    def forget_rollouts(self) -> None:
        """Let the models be of no release any more: a server that was restored gives their numbers to others."""
        noted = {name: model for name in MODEL_KEYS if (model := self._read(name)) and model.pop("rollout", None)}
        if noted:
            self.store.put(**{name: json.dumps(model) for name, model in noted.items()})

    def _read(self, name: str) -> dict[str, Any] | None:
        text = self.store.get(name)
        model: dict[str, Any] | None = json.loads(text) if text else None
        return model

    def _place(self, folder: Path, round_number: int, source: str) -> dict[str, str]:
        sha256 = sha256_of(folder / MODEL)
        stem = f"r{round_number}-{source}-{sha256[:8]}"
        checkpoint, path = self.folder / f"{stem}.safetensors", self.folder / f"{stem}.onnx"
        move_file(folder / CHECKPOINT, checkpoint)
        move_file(folder / MODEL, path)
        return {"path": str(path), "checkpoint": str(checkpoint), "sha256": sha256}

    def _prune(self) -> None:
        kept = {Path(json.loads(text)["path"]).stem for name in MODEL_KEYS if (text := self.store.get(name))}
        for path in self.folder.glob("*"):
            if path.stem not in kept:
                path.unlink()


def _name(model: Mapping[str, Any]) -> str:
    return f"{model['source']} model of round {model['round']}"


def _is_whole(model: Mapping[str, Any]) -> bool:
    path = Path(model["path"])
    return path.is_file() and sha256_of(path) == model["sha256"]
