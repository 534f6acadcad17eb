"""Chooses among working models by `federation.rounds.serving` on the device's windows, and explains why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_agent.config.training import ModelSection
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.model_registry import HEADS_IN_WORDS, NETWORK, name_of
from edge_agent.serving.model_runs import Model, ModelEvaluation, PairedAnswers, Windows, kind_of
from edge_agent.training.comparison import PairedComparison
from edge_agent.training.local_data import SplitWindows
from federation.plan import Plan
from federation.rounds.gains import length
from federation.rounds.serving import (
    ADAPTED,
    MIDWAY,
    PERSONAL,
    PERSONALIZED_ANY_ORIENTATION,
    SHARED,
    SHARED_ANY_ORIENTATION,
    SHARED_HEAD,
    GainSums,
    Prefer,
    Prior,
    Rival,
    expected_gains,
    likeliest,
)
from gaitway.tasks import Soundness, TargetKind, task_of

ORDER = (MIDWAY, PERSONAL, NETWORK, SHARED, SHARED_HEAD, ADAPTED, PERSONALIZED_ANY_ORIENTATION, SHARED_ANY_ORIENTATION)
"""Which of equally good models serves: personal ones first, but for heads that ignore how the phone lies."""
NAMES = {
    SHARED: "the shared model",
    SHARED_HEAD: "the shared model",
    PERSONAL: "your own model",
    MIDWAY: "the model midway between the two",
}
FORGETFUL = (PERSONAL, MIDWAY)
"""A network that was trained on a device loses the classes that the device doesn't have; a head of sums keeps them."""
EXPECTED = "it is expected to be the best over all activities"


@dataclass(frozen=True)
class Rules:
    """What a choice goes by, besides the windows."""

    prefer: Prefer = "likelier"
    margin: float = 0.0
    labels: Sequence[str] = ()
    priors: Mapping[str, Prior] = field(default_factory=dict)
    trained: npt.NDArray[np.bool_] | None = None
    """Whether the device has trained on each class (C,); None: on all of them."""

    @classmethod
    def of(
        cls, settings: ModelSection, plan: Plan, command: Evaluate, reported: Mapping[str, GainSums], data: SplitWindows
    ) -> Rules:
        """Lay the device's settings over what the server says of other devices, less the device's own report."""
        classes = len(plan.labels)
        fitting = {name: sums for name, sums in command.gains.items() if len(sums) == length(classes)}
        own_sums = {name: own for name, own in reported.items() if len(own) == length(classes)}
        found = {name: Prior.of(sums, own_sums.get(name)) for name, sums in fitting.items()}
        priors = {name: prior for name, prior in found.items() if prior}
        trained = None
        if task_of(plan.task).target is TargetKind.CLASS:
            held = np.bincount(data.holdout.y, minlength=classes)
            trained = np.bincount(data.labelled.y, minlength=classes) > held
        return cls(settings.prefer, settings.adopt_margin, plan.labels, priors, trained)


class Choice(NamedTuple):
    """The model that serves, every model's expected gain over the shared one, and why in a sentence."""

    run: ModelEvaluation
    gains: Mapping[str, float]
    words: str
    found: Mapping[str, Soundness] = {}
    """By key, what the windows that decided say of each model that they could compare."""


def choose(
    new: Sequence[ModelEvaluation], held: Sequence[ModelEvaluation], windows: Windows, rules: Rules
) -> Choice | None:
    """Choose among new models and those that the device has already, all of which run; None if none works.

    They are compared with the newest shared model; without any, with the newest of the device's own. All are compared
    on the same windows: those that cross-validation answered for the newest own model, or else the holdout.
    """
    able = [*new, *(run for run in held if not run.soundness.failure_reason)]
    if not able:
        return None
    newest_first = sorted(able, key=lambda run: -run.model["round"])  # stable: new ones come first
    reference = next((run for run in newest_first if run.is_shared), newest_first[0])
    ranked = sorted(newest_first, key=lambda run: _rank(kind_of(run.model)))
    own = next((run for run in newest_first if not run.is_shared), None)
    is_validated = reference.is_shared and own is not None and own.validated is not None
    seen = windows if is_validated else windows.only_holdout()
    field = Field(reference, ranked, {run.key: seen.compare(run, reference) for run in ranked})
    gains, found = (
        field.gains(rules),
        {key: comparison.found for key, comparison in field.compared.items() if comparison},
    )
    if rules.prefer != "likelier":
        kinds = (SHARED, SHARED_HEAD) if rules.prefer == "shared" else (PERSONAL,)
        wanted = next((run for run in ranked if kind_of(run.model) in kinds), ranked[0])
        return Choice(wanted, gains, f"{field.sentence(wanted)}; [model] prefer is {rules.prefer!r}", found)
    name = likeliest(gains, [run.key for run in ranked], rules.margin, reference.key)
    best = next(run for run in ranked if run.key == name)
    is_surprise = best.key in found and any(comparison.gain(found[best.key]) > 0 for comparison in found.values())
    return Choice(best, gains, field.sentence(best) + ("; " + EXPECTED if is_surprise else ""), found)


def _rank(kind: str) -> int:
    """Return a kind's place in the order of preference; a head of another package's method comes last."""
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


class Field(NamedTuple):
    """Models by preference, and how each compares with the one that they are compared with."""

    reference: ModelEvaluation
    ranked: Sequence[ModelEvaluation]
    compared: Mapping[str, PairedAnswers | None]

    def gains(self, rules: Rules) -> dict[str, float]:
        """Return each model's expected gain over the reference, by key; without those of which nothing is known."""
        rivals = [run for run in self.ranked if run is not self.reference]
        candidates = {run.key: self._candidate(run, rules) for run in rivals}
        known = [len(rival.evidence.gain) for rival in candidates.values() if rival.evidence]
        known += [len(rival.prior.by_class) for rival in candidates.values() if rival.prior]
        if not known:
            return {}
        classes, own = known[0], self.compared[self.reference.key]
        trained = rules.trained
        if trained is None or len(trained) != classes:  # a task without classes
            trained = np.ones(classes, bool)
        return expected_gains(candidates, trained, own.examples.lowest_recall(own.quality) if own else 0.0)

    def _candidate(self, run: ModelEvaluation, rules: Rules) -> Rival:
        found, kind = self.compared[run.key], kind_of(run.model)
        evidence = found.evidence if found else None
        if run.is_shared and evidence:  # an older one, of which no gain is expected
            return Rival(evidence, Prior(0.0, 0.0, np.zeros(len(evidence.gain))), forgets=False)
        if not self.reference.is_shared or "head" in run.model:
            return Rival(evidence, None, forgets=False)
        return Rival(evidence, rules.priors.get(kind), forgets=kind in FORGETFUL)

    def sentence(self, best: ModelEvaluation) -> str:
        """Say the score of the model that serves, that of the shared one, and those of the others, in this order."""
        order = dict.fromkeys([best.key, self.reference.key, *(run.key for run in self.ranked)])
        runs = {run.key: run for run in self.ranked}
        words: dict[str, str] = {}  # by how each model is called
        for run in (runs[key] for key in order):
            name = name_in_words(run.model)
            if name in words:  # an older one
                name = f"{name} of {'version' if 'head' in run.model else 'round'} {run.model['round']}"
            words[name] = f"{name}: {self._score(run)}"
        found = self.compared[best.key]
        windows = best.soundness.size
        if found and found.is_validated:
            windows = f"{len(found.quality)} windows of sessions that it wasn't trained on"
        first, *rest = words.values()
        return sentence_case("; ".join([f"{first} on {windows}", *rest]))

    def _score(self, run: ModelEvaluation) -> str:
        found = self.compared[run.key]
        sound = found.found if found else run.soundness
        if sound.score is None:
            return "no score"
        return f"{100 * sound.score:.0f} %" if sound.kind.is_share else sound.kind.text(sound.score)


def compared_models(runs: Sequence[ModelEvaluation], choice: Choice | None, windows: Windows) -> dict[str, Any] | None:
    """Describe every model that ran by the same windows, and what it is expected to gain over the shared one."""
    if not runs:
        return None
    choice = choice or Choice(runs[0], {}, "")
    decided = next(iter(choice.found.values()), runs[0].soundness)
    rows = {}
    for run in runs:
        sound = choice.found.get(run.key) if choice.found else run.soundness
        named = {name: run.model[name] for name in ("source", "round", "sha256", "head") if name in run.model}
        found = {"name": name_of(run.model), "score": sound and sound.score, "gain": choice.gains.get(run.key)}
        rows[run.key] = {**named, **found}
    return {
        "at": time.time(),
        "metric": decided.metric,
        "windows": decided.examples,
        "noun": windows.noun,
        "classes": decided.described().get("classes"),
        "why": choice.words,
        "models": list(rows.values()),
    }


def name_in_words(model: Model) -> str:
    """Name a model for the person who wears the device."""
    kind = kind_of(model)
    return NAMES.get(kind) or f"the {HEADS_IN_WORDS.get(kind, kind)}"


def sentence_case(words: str) -> str:
    """Begin with a capital letter."""
    return words[:1].upper() + words[1:]


def judge_release(
    run: ModelEvaluation, present: ModelEvaluation | None, windows: Windows, *, has_model: bool
) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a released model that works, and why: one that is significantly worse is refused.

    The operator asked for it, so it need not be better. A `refused` can halt the rollout, so it takes significance.

    present: the present model's run; None if it does not run, or there is none.
    """
    score = run.soundness.words
    if present is None:
        why = "the current model no longer runs" if has_model else "there was no model before"
        return "adopted", "; ".join(filter(None, [score, why]))
    if not len(windows.groups):
        return "adopted", "there are no held-out examples to compare it with the current model"
    paired = PairedComparison.of(windows.groups, run.quality, present.quality)
    why = f"{score} and {present.score:.3f} for the current model; {paired.words}"
    if run.gain(present) >= 0 and present.soundness.failure_reason:
        return "adopted", f"{why}; the current model doesn't work: {present.soundness.failure_reason}"
    if run.gain(present) >= 0 and not paired.is_worse:
        return "adopted", f"{why}; a released model need not be better, and it is no worse"
    if run.gain(present) <= 0 and paired.is_worse:
        return "refused", f"{why}; it is worse"
    return "kept", f"{why}; it scores lower here, so the current model stays"
