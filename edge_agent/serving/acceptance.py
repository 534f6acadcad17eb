"""Decides which model a device uses after a job: the most promising one that works, or the operator's release.

Every model that the device holds runs on the same windows and must work, as `gaitway.tasks` has it. Where the holdout
can't tell, what the server knows of the version from other devices stands in. Among those that work,
`edge_agent.serving.choice` chooses; a released model has a gate of its own (`edge_agent.serving.acceptance`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.choice import Choice, Rules, choose, compared_models, judge_release, sentence_case
from edge_agent.serving.heads import add_network, comparable, evaluate_heads, has_heads
from edge_agent.serving.model_registry import SOURCES, ModelRegistry, Verdict, name_of
from edge_agent.serving.model_runs import (
    ExampleKind,
    Model,
    ModelEvaluation,
    Windows,
    run_again,
    run_model,
    validation_of,
)
from edge_agent.storage.data_folder import sha256_of
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.cross_validation import MAX_WINDOWS
from edge_agent.training.job import GLOBAL, HEADS, MIDWAY, MODEL, PARITY, RESULT, job_folder
from edge_agent.training.local_data import evenly, noun, preparation, read_split
from export.runtime import ExportError
from federation.plan import Plan
from federation.protocol.messages import VersionScore


class NewModel(NamedTuple):
    """A model that a job left in `folder`; `round` made it."""

    folder: Path
    source: str
    round: int

    def described(self) -> dict[str, Any]:
        """Describe it as the registry does.

        Raises:
            OSError, ValueError: if a file is missing or damaged.
        """
        parity = json.loads((self.folder / PARITY).read_bytes())
        sha256 = sha256_of(self.folder / MODEL)
        return {"source": self.source, "round": self.round, "sha256": sha256, "parity": parity}


class Checked(NamedTuple):
    """A candidate after its check: `answer` if that alone decides, None if it works; `why` explains it."""

    candidate: NewModel
    run: ModelEvaluation | None
    answer: AdoptionOutcome | None
    why: str
    is_unknown: bool = False
    """Whether nobody could check it, neither here nor on other devices."""


def evaluate_job(config: Config, plan: Plan, command: Evaluate) -> Verdict:
    """Judge what a job left, on the device's own labelled windows; for a thread of its own."""
    settings, threads = preparation(config.sensors, plan), config.training.threads
    folder = job_folder(config.agent.data_dir.resolve(), command.round, command.kind)
    with closing(StateStore(config.agent.data_dir)) as store, closing(WindowStore(config.agent.data_dir)) as kept:
        registry = ModelRegistry(store)
        present, others = registry.present(), registry.others()
        reported = registry.reported_gains(command)
        data = read_split(kept, config.sensor_client, settings, plan)
    holdout, judged = evenly(data.holdout, config.model.holdout_windows), ExampleKind.of(plan, noun(settings))
    rules = Rules.of(config.model, plan, command, reported, data)
    if has_heads(folder):
        beside = config.model.network_dir
        missing = "" if beside is None else add_network(folder / HEADS, beside, plan.labels, threads)
        able = comparable(data._replace(holdout=holdout))
        windows = Windows.of(able, None, judged, plan.labels, threads)
        return evaluate_heads(folder, command, windows, present, rules, missing=missing)
    candidates = candidates_in(folder, command)
    files = [model.folder / MODEL for model in candidates]
    files += [Path(model["path"]) for model in (present, *others) if model]
    # all labelled windows are answered only where cross-validation has left something to compare with
    is_validated = len(data.labelled) <= MAX_WINDOWS and any(validation_of(path).is_file() for path in files)
    windows = Windows.of(holdout, data.labelled if is_validated else None, judged, plan.labels, threads)
    return evaluate(candidates, command, windows, present, others, rules)


def candidates_in(folder: Path, command: Evaluate) -> list[NewModel]:
    """Name the models that a job left: the one that it is about, the shared one that it began from, and midway."""
    own = NewModel(folder, SOURCES[command.kind], command.round)
    beside = (NewModel(folder / GLOBAL, "global", command.round - 1), NewModel(folder / MIDWAY, MIDWAY, command.round))
    return [own, *(model for model in beside if (model.folder / MODEL).is_file())]


def evaluate(
    candidates: Sequence[NewModel],
    command: Evaluate,
    windows: Windows,
    present: Model | None,
    others: Sequence[Model] = (),
    rules: Rules = Rules(),
) -> Verdict:
    """Run the candidates and the device's models on the same windows, and say which is used from now on.

    `others` were judged before; where the candidate is released they are not asked. The verdict is on the first
    candidate, or on the one midway where that is chosen; `beside` has the others. `command.server_score` is what the
    server knows of the candidate's version, of a personalized one of the version that it began from.
    """
    if not (candidates[0].folder / MODEL).is_file():
        return _no_candidate(candidates[0].folder, command)
    checked = [check(candidate, command.server_score, windows) for candidate in candidates]
    if command.release:
        return _released(checked[0], command, windows, present, _shared_of(present, others))
    now = run_again(present, windows)
    held = [run for run in (now, *(run_again(model, windows) for model in others)) if run]
    checked = _with_unknown(checked, held)
    choice = choose([entry.run for entry in checked if entry.run and entry.answer is None], held, windows, rules)
    compared = compared_models([entry.run for entry in checked if entry.run] + held, choice, windows)
    return _verdict(checked, choice, command, present)._replace(compared=compared)


def check(candidate: NewModel, score: VersionScore | None, windows: Windows) -> Checked:
    """Run a candidate, and say whether it works: by the holdout, or where that can't tell by the server's score."""
    try:
        run = run_model(candidate.folder / MODEL, candidate.described(), windows)
    except (AgentError, ExportError, OSError, ValueError) as error:
        return Checked(candidate, None, "failed", f"it does not work: {error}")
    sound = run.soundness
    if sound.failure_reason:
        return Checked(candidate, run, "failed", f"it does not work: {sound.failure_reason}; {sound.words}")
    if not sound.undecided_reason:
        return Checked(candidate, run, None, "")
    why = f"whether it works cannot be checked here ({sound.undecided_reason})"
    version = "it" if run.is_global else "the version that it began from"
    if score is None:
        return Checked(candidate, run, "undecided", f"{why}; the server has no score of {version}", is_unknown=True)
    if not score.is_sound:
        # of what was trained here since, other devices' word about the beginning does not say that it does not work
        answer: AdoptionOutcome = "failed" if run.is_global else "undecided"
        return Checked(candidate, run, answer, f"{why}; the server's score of {version} is too low: {score.words}")
    return Checked(candidate, run, None, f"{why}; the server's score of {version} stands in: {score.words}")


def _with_unknown(checked: Sequence[Checked], held: Sequence[ModelEvaluation]) -> list[Checked]:
    """Let models that nobody could check take part in the choice where there is no shared model that anybody could."""
    known = [*held, *(entry.run for entry in checked if entry.run and entry.answer is None)]
    if any(run.is_shared for run in known):
        return list(checked)
    return [
        entry._replace(answer=None, why=f"{entry.why}, so it is unchecked") if entry.is_unknown else entry
        for entry in checked
    ]


def _shared_of(present: Model | None, others: Sequence[Model]) -> Model | None:
    """Return the model that a released one is compared with: not one of the device's own, which may be better."""
    return next((model for model in (present, *others) if model and model["source"] == "global"), present)


def _released(
    checked: Checked, command: Evaluate, windows: Windows, present: Model | None, shared: Model | None
) -> Verdict:
    answer, why, now = checked.answer or "failed", checked.why, run_again(shared, windows)
    if checked.run is not None and checked.is_unknown and present is None:
        answer, why = "adopted", f"{why}, and there is no model yet, so it is used unchecked"
    elif checked.run is not None and checked.answer is None:
        answer, gate = judge_release(checked.run, now, windows, has_model=present is not None)
        why = "; ".join(filter(None, [why, gate]))
    runs = [run for run in (checked.run, now) if run]
    found = _one(checked, command, answer, why, present)
    return found._replace(against=_sha256(present), compared=compared_models(runs, None, windows))


def _verdict(checked: Sequence[Checked], choice: Choice | None, command: Evaluate, present: Model | None) -> Verdict:
    in_use = choice.run.model if choice else present
    found = []
    for entry in checked:
        answer, why = entry.answer, entry.why
        if answer is None and choice is not None:
            answer = "adopted" if entry.run is choice.run else "kept"
            why = "; ".join(filter(None, [choice.words, why]))
        found.append(_one(entry, command, answer or "failed", why, in_use))
    # the device's own model, or the one midway if that is chosen
    own = next((entry for entry in found if entry.good and entry.source == "personalized"), found[0])
    beside = tuple(entry for entry in found if entry is not own)
    is_new = any(entry.run is (choice and choice.run) for entry in checked)
    instead = choice.run.model if choice and not is_new and _sha256(choice.run.model) != _sha256(present) else None
    return own._replace(beside=beside, instead=instead, against=_sha256(present))


def _one(checked: Checked, command: Evaluate, answer: AdoptionOutcome, why: str, in_use: Model | None) -> Verdict:
    candidate = checked.candidate
    name = name_of({"source": candidate.source, "round": candidate.round})
    outcome = "adopted" if answer == "adopted" else "not adopted" + (f" (in use: {name_of(in_use)})" if in_use else "")
    return Verdict(
        candidate.round,
        "adopt" if candidate.source == "global" else command.kind,
        answer,
        f"{name}: {outcome}. {sentence_case(why)}",
        candidate.folder if checked.run else None,
        {**checked.run.model, **checked.run.soundness.described()} if checked.run else None,
        release=command.release,
    )


def _sha256(model: Model | None) -> str:
    return str(model["sha256"]) if model else ""


def _no_candidate(folder: Path, command: Evaluate) -> Verdict:
    name = f"{SOURCES[command.kind]} model of round {command.round}"
    try:
        why = str(json.loads((folder / RESULT).read_bytes())["no_model"])
    except (OSError, ValueError, KeyError):
        left = f"{name}: the training process left no model, the current model stays"
        return Verdict(command.round, command.kind, "failed", left, release=command.release)
    reason = f"{name}: {why}, the current model stays"
    return Verdict(command.round, command.kind, "none", reason, release=command.release)
