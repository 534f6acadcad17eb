"""Whether a candidate becomes the device's model.

It must run and work, as `edge_agent.serving.soundness` has it, and not be worse than the present model. Where the
holdout cannot tell whether it works, what the server knows of the version from other devices stands in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, StoreError
from edge_agent.machine.commands import Judge
from edge_agent.machine.events import Answer, Kind
from edge_agent.serving.soundness import Soundness
from edge_agent.storage.files import place_file, sha256_of
from edge_agent.storage.state_store import AdoptionRow, Store
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY, RESULT, job_folder
from edge_agent.training.local_data import local_data, pipeline_settings
from export.runtime import ExportError, Session
from federation.plan import Plan
from federation.protocol.messages import VersionScore
from har_pipeline import ClientWindows

KEPT = ("model", "previous")
"""Names in the store under which the last two good models are noted, the present one first."""
SOURCES: Mapping[Kind, str] = {"train": "personalized", "adopt": "global"}


class Verdict(NamedTuple):
    """What was found about the candidate of a job; `model` describes it as `summary.json` does."""

    round: int
    kind: Kind
    answer: Answer
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


def judge_job(config: Config, plan: Plan, asked: Judge) -> Verdict:
    """Judge what a job left, on the device's own holdout windows; for a thread of its own."""
    settings = pipeline_settings(config.sensors, plan.data)
    with closing(Store(config.agent.data_dir)) as store, closing(WindowStore(config.agent.data_dir)) as windows:
        present = Shelf(store).present()
        holdout = local_data(windows.read(config.sensor_client, settings, plan.labels), plan.data, settings).holdout
    verdict = judge(
        job_folder(config.agent.data_dir.resolve(), asked.round, asked.kind),
        asked.round,
        asked.kind,
        _evenly(holdout, config.model.holdout_windows),
        present,
        margin=config.model.adopt_margin,
        vouched=asked.vouched,
        threads=config.training.threads,
    )
    return verdict._replace(release=asked.release)


def judge(
    folder: Path,
    round_number: int,
    kind: Kind,
    holdout: ClientWindows,
    present: Mapping[str, Any] | None,
    *,
    margin: float,
    vouched: VersionScore | None = None,
    threads: int = 1,
) -> Verdict:
    """Run the candidate in `folder` on the raw holdout windows, and say what becomes of it.

    `vouched` is what the server knows of the candidate's version, of a personalized one of the version that it began
    from. It is asked for only where the holdout cannot tell whether the candidate works.
    """
    source = SOURCES[kind]
    name = f"{source} model of round {round_number}"
    if not (folder / MODEL).is_file():
        return _no_candidate(folder, round_number, kind)
    try:
        found = _run(folder / MODEL, holdout, threads)
        parity = json.loads((folder / PARITY).read_bytes())
    except (AgentError, ExportError, OSError, ValueError) as error:
        return Verdict(round_number, kind, "failed", f"{name}: not adopted, it does not work: {error}")
    model = {"source": source, "round": round_number, "parity": parity, **_described(found)}
    answer, why = _decide(found, kind, present, margin, vouched)
    reason = f"{name}: {'adopted' if answer == 'adopted' else 'not adopted'}, {why}"
    return Verdict(round_number, kind, answer, reason, folder, model)


def _no_candidate(folder: Path, round_number: int, kind: Kind) -> Verdict:
    name = f"{SOURCES[kind]} model of round {round_number}"
    try:
        why = str(json.loads((folder / RESULT).read_bytes())["no_model"])
    except (OSError, ValueError, KeyError):
        return Verdict(
            round_number, kind, "failed", f"{name}: the training process left no model, the present model stays"
        )
    return Verdict(round_number, kind, "none", f"{name}: {why}, the present model stays")


def _described(found: Soundness) -> dict[str, Any]:
    """Describe a model by its holdout; its labels name the rows (true) and columns (answered) of `confusion`."""
    return {
        "macro_f1": found.macro_f1,
        "most_frequent": found.most_frequent,
        "checked": not found.obstacle,
        "windows": found.windows,
        "classes": found.classes,
        "confusion": found.matrix.tolist() if found.windows else None,
        "labels": list(found.labels) if found.windows else None,
    }


def _evenly(windows: ClientWindows, count: int) -> ClientWindows:
    """Thin windows out to at most `count`, over all of the time that they cover, so that no class goes missing."""
    if len(windows) <= count:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def _decide(
    found: Soundness, kind: Kind, present: Mapping[str, Any] | None, margin: float, vouched: VersionScore | None
) -> tuple[Answer, str]:
    """Say what becomes of a candidate that runs, and why."""
    if found.fault:
        return "failed", f"it does not work: {found.fault}; {found.words}"
    worse, compared = _compare(found, present, margin)
    if not found.obstacle:
        return "refused" if worse else "adopted", compared
    answer, why = _by_the_server(kind, present is not None, vouched)
    why = f"whether it works cannot be checked here ({found.obstacle}); {why}"
    if answer == "adopted" and worse:
        answer = "refused"
    return answer, f"{why}; {compared}" if compared else why


def _by_the_server(kind: Kind, has_model: bool, vouched: VersionScore | None) -> tuple[Answer, str]:
    """Let what the server knows of the version stand in for a check of one's own."""
    version = "the version that it began from" if kind == "train" else "it"
    if vouched is None:
        so = "so the present model stays" if has_model else "and there is no model yet, so it is used unchecked"
        return "undecided" if has_model else "adopted", f"the server has no score of {version}, {so}"
    if vouched.is_sound:
        return "adopted", f"the server's score of {version} stands in: {vouched.words}"
    so = f"the server's score of {version} speaks against it: {vouched.words}"
    # of what was trained here since, other devices' word about the beginning does not say that it does not work
    return "undecided" if kind == "train" else "failed", so


def _compare(found: Soundness, present: Mapping[str, Any] | None, margin: float) -> tuple[bool, str]:
    """Whether it is worse than the present model by more than the margin, and the figures in words."""
    f1, old = found.macro_f1, present.get("macro_f1") if present else None
    if f1 is None:
        return False, ""
    if old is None:
        no_other = "the present model has no score" if present else "there was no model before"
        return False, f"{found.words}; {no_other}"
    return f1 < old - margin, f"{found.words} and {old:.3f} of the present model (margin {margin})"


def _run(path: Path, holdout: ClientWindows, threads: int) -> Soundness:
    """Classify the holdout, or one window of zeros where there is none: the candidate must run in any case."""
    session = Session.load(path, threads=threads)
    length = session.metadata.window
    smoke = holdout.x if len(holdout) else np.zeros((1, length, 6), np.float32)
    prediction = session.predict(smoke)
    if not (np.isfinite(prediction.logits).all() and np.isfinite(prediction.embedding).all()):
        raise StoreError(f"{path.name} gives NaN or infinity on the device's own windows")
    answered = prediction.logits.argmax(axis=1).astype(np.int64)[: len(holdout)]
    return Soundness.of(holdout.y, answered, session.metadata.labels)


def _name(model: Mapping[str, Any]) -> str:
    return f"{model['source']} model of round {model['round']}"


def _is_whole(model: Mapping[str, Any]) -> bool:
    path = Path(model["path"])
    return path.is_file() and sha256_of(path) == model["sha256"]


class Shelf:
    """The last two good models of a device, in `folder`/models; noted in the store."""

    def __init__(self, store: Store) -> None:
        self.store, self.folder = store, store.folder / "models"

    def present(self) -> dict[str, Any] | None:
        """Describe the newest good model whose file is whole; None if there is none."""
        return next((model for name in KEPT if (model := self._noted(name)) and _is_whole(model)), None)

    def settle(self, verdict: Verdict) -> None:
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
        now, before = (self._noted(name) for name in KEPT)
        if now is None or before is None:
            raise StoreError("there is no earlier good model to go back to; the device keeps the last two")
        if not _is_whole(before):
            raise StoreError(f"{before['path']} is gone or damaged; the present model stays")
        reason = f"{_name(before)}: taken back by hand, in place of the {_name(now)}"
        row = AdoptionRow(before["round"], before["source"], True, reason, before, time.time())
        self.store.note_adoption(row, model=json.dumps(before), previous=json.dumps(now))
        return before

    def leave(self, release: int) -> None:
        """Forget the models of a release that was withdrawn: the one before it is used again, or none if none was."""
        left = [model for name in KEPT if (model := self._noted(name)) and model.get("rollout") != release]
        now, before = [*map(json.dumps, left), "", ""][:2]
        shown = _name(left[0]) if left else "none"
        round_number, source = (left[0]["round"], left[0]["source"]) if left else (0, "global")
        reason = f"release {release} was withdrawn by the server; the model in use now: {shown}"
        row = AdoptionRow(round_number, source, bool(left), reason, left[0] if left else {}, time.time())
        self.store.note_adoption(row, model=now, previous=before)
        self._prune()

    def forget_rollouts(self) -> None:
        """Let the models be of no release any more: a server that was restored gives their numbers to others."""
        noted = {name: model for name in KEPT if (model := self._noted(name)) and model.pop("rollout", None)}
        if noted:
            self.store.put(**{name: json.dumps(model) for name, model in noted.items()})

    def _noted(self, name: str) -> dict[str, Any] | None:
        text = self.store.get(name)
        model: dict[str, Any] | None = json.loads(text) if text else None
        return model

    def _place(self, folder: Path, round_number: int, source: str) -> dict[str, str]:
        sha256 = sha256_of(folder / MODEL)
        stem = f"r{round_number}-{source}-{sha256[:8]}"
        checkpoint, path = self.folder / f"{stem}.safetensors", self.folder / f"{stem}.onnx"
        place_file(folder / CHECKPOINT, checkpoint)
        place_file(folder / MODEL, path)
        return {"path": str(path), "checkpoint": str(checkpoint), "sha256": sha256}

    def _prune(self) -> None:
        kept = {Path(json.loads(text)["path"]).stem for name in KEPT if (text := self.store.get(name))}
        for path in self.folder.glob("*"):
            if path.stem not in kept:
                path.unlink()
