"""Whether a candidate becomes the device's model.

It must run and work, as `edge_agent.serving.soundness` has it, and not be worse than the present model. Where the
holdout cannot tell whether it works, what the server knows of the version from other devices stands in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, StoreError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome, Kind
from edge_agent.serving.model_registry import SOURCES, ModelRegistry, Verdict
from edge_agent.serving.soundness import Soundness
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.job import MODEL, PARITY, RESULT, job_folder
from edge_agent.training.local_data import local_data, pipeline_settings
from export.runtime import ExportError, Session
from federation.plan import Plan
from federation.protocol.messages import VersionScore
from har_pipeline import ClientWindows


def evaluate_job(config: Config, plan: Plan, asked: Evaluate) -> Verdict:
    """Judge what a job left, on the device's own holdout windows; for a thread of its own."""
    settings = pipeline_settings(config.sensors, plan.data)
    with closing(StateStore(config.agent.data_dir)) as store, closing(WindowStore(config.agent.data_dir)) as windows:
        present = ModelRegistry(store).present()
        holdout = local_data(windows.read(config.sensor_client, settings, plan.labels), plan.data, settings).holdout
    verdict = evaluate(
        job_folder(config.agent.data_dir.resolve(), asked.round, asked.kind),
        asked.round,
        asked.kind,
        _evenly(holdout, config.model.holdout_windows),
        present,
        margin=config.model.adopt_margin,
        server_score=asked.server_score,
        threads=config.training.threads,
    )
    return verdict._replace(release=asked.release)


def evaluate(
    folder: Path,
    round_number: int,
    kind: Kind,
    holdout: ClientWindows,
    present: Mapping[str, Any] | None,
    *,
    margin: float,
    server_score: VersionScore | None = None,
    threads: int = 1,
) -> Verdict:
    """Run the candidate in `folder` on the raw holdout windows, and say what becomes of it.

    `server_score` is what the server knows of the candidate's version, of a personalized one of the version that it
    began from. It is asked for only where the holdout cannot tell whether the candidate works.
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
    answer, why = _decide(found, kind, present, margin, server_score)
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
    found: Soundness, kind: Kind, present: Mapping[str, Any] | None, margin: float, server_score: VersionScore | None
) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a candidate that runs, and why."""
    if found.fault:
        return "failed", f"it does not work: {found.fault}; {found.words}"
    worse, compared = _compare(found, present, margin)
    if not found.obstacle:
        return "refused" if worse else "adopted", compared
    answer, why = _by_the_server(kind, present is not None, server_score)
    why = f"whether it works cannot be checked here ({found.obstacle}); {why}"
    if answer == "adopted" and worse:
        answer = "refused"
    return answer, f"{why}; {compared}" if compared else why


def _by_the_server(kind: Kind, has_model: bool, server_score: VersionScore | None) -> tuple[AdoptionOutcome, str]:
    """Let what the server knows of the version stand in for a check of one's own."""
    version = "the version that it began from" if kind == "train" else "it"
    if server_score is None:
        so = "so the present model stays" if has_model else "and there is no model yet, so it is used unchecked"
        return "undecided" if has_model else "adopted", f"the server has no score of {version}, {so}"
    if server_score.is_sound:
        return "adopted", f"the server's score of {version} stands in: {server_score.words}"
    so = f"the server's score of {version} speaks against it: {server_score.words}"
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
    smoke = holdout.x if len(holdout) else np.zeros((1, *session.metadata.input.shape), np.float32)
    prediction = session.predict(smoke)
    if not (np.isfinite(prediction.logits).all() and np.isfinite(prediction.embedding).all()):
        raise StoreError(f"{path.name} gives NaN or infinity on the device's own windows")
    answered = prediction.logits.argmax(axis=1).astype(np.int64)[: len(holdout)]
    return Soundness.of(holdout.y, answered, session.metadata.labels)
