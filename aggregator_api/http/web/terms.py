"""The one table of the figures' words: the label that stands at a figure, and what it means, which a pop-up says.

Two figures that are measured differently have two entries, so that they cannot carry the same label.
"""

from __future__ import annotations

from typing import NamedTuple

from gaitway.tasks import Metric


class Term(NamedTuple):
    """A figure's label, in which {metric} stands for the task's metric, and what it means."""

    label: str
    meaning: str


TERMS = {
    "own_score": Term(
        "{metric}, own models",
        "What devices measured of the models that they had themselves trained in the round, each on its own holdout: "
        "the mean over them. It says how well devices learn, not how good the version is that came of the round.",
    ),
    "version_score": Term(
        "{metric}, version",
        "What devices measured of the version as the server made it, each on its own holdout: when a round gave it to "
        "them, when they judged it, and in its rollout. It decides what is promoted and released.",
    ),
    "works_on": Term(
        "works on",
        "Devices on whose own holdout the model beats the trivial answer, such as always the most frequent class, of "
        "those that measured it and have a holdout that can tell.",
    ),
    "measured_by": Term(
        "measured by",
        "Devices that have measured the version on their own holdout. Too few, and no name moves to it.",
    ),
    "made_from": Term(
        "made from",
        "The devices whose updates the version's round used, and how many examples those were trained on.",
    ),
    "plan": Term(
        "plan",
        "What the federation has agreed on. Labels, network and method never change; settings of rounds, rollouts and "
        "promotion do, and so may differ between two versions.",
    ),
    "online": Term("devices online", "Devices that have said something lately, are not suspended and may take part."),
    "present_model": Term("latest version", "The newest version, which rounds start from; its name is latest."),
    "epsilon": Term(
        "ε",
        "Privacy spent so far: what one person's data can have changed in all published models together, at the plan's "
        "δ. Smaller is more private.",
    ),
    "told": Term("told", "Devices of the waves so far, which were told that the version is for them."),
    "good": Term("good", "They use the version, or keep a model of theirs that is no worse on their own holdout."),
    "bad": Term("bad", "The version is worse there, does not work there, or was left again after it was used."),
    "examples": Term("examples", "Labelled windows on the device. They stay there."),
    "stable": Term("stable", "The newest version that enough devices have measured and that is not worse."),
    "released": Term("released", "The version that the last completed rollout gave to devices."),
    "canary": Term("canary", "The version that a rollout gives to devices, wave after wave, at the moment."),
    "latest": Term("latest", "The newest version, which rounds start from."),
    "previous": Term("previous", "The version that was stable before."),
}


def term_label(name: str, metric: Metric | None = None) -> str:
    """Return a figure's label."""
    return TERMS[name].label.format(metric=metric.label if metric else "")
