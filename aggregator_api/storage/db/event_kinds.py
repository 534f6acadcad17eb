"""Names every kind of event that a federation's journal can hold, with what it means.

The journal writes no other kind. Pages, OpenAPI and the log say what is said here; what else must be known of a kind
stands in its entry.
"""

from __future__ import annotations

from typing import NamedTuple


class EventKind(NamedTuple):
    """What has happened, and what that may change."""

    meaning: str
    changes_measures: bool = False
    """Whether the server's measures of the released models may be others afterwards (`rollouts/promotion.py`)."""


EVENT_KINDS = {
    "federation.created": EventKind("the federation was created"),
    "federation.changed": EventKind("its settings were changed", changes_measures=True),
    "federation.vouched": EventKind("vouchers of its devices were imported"),
    "federation.running": EventKind("it was resumed"),
    "federation.paused": EventKind("it was paused, by the operator or because a model is damaged"),
    "federation.finished": EventKind("it has had all its rounds, or has spent its privacy", changes_measures=True),
    "federation.stopped": EventKind("the operator ended it"),
    "server.restored": EventKind("the server goes on from a backup"),
    "program.made": EventKind("devices without torch can train, by the federation's program"),
    "program.failed": EventKind("the federation has no program, so devices without torch cannot train"),
    "round.announced": EventKind("a round has begun, and its cohort is invited"),
    "round.collecting": EventKind("the first update of the round has come"),
    "round.aggregating": EventKind("no more updates are taken, and the round is aggregated"),
    "round.published": EventKind("the round has ended with a new model"),
    "round.failed": EventKind("the round has ended without a model"),
    "round.capped": EventKind("updates of the round count with fewer examples than they claim"),
    "round.secure_sum": EventKind("a stage of the round's secure sum has ended, and the next one begun"),
    "round.retried": EventKind("the round's secure sum failed, and is tried again without some, or in groups"),
    "round.privacy": EventKind("the round has spent privacy"),
    "model.published": EventKind("a new version of the model can be used", changes_measures=True),
    "model.alias": EventKind("a name of a version was moved or removed"),
    "model.held": EventKind("`stable` stays where it is"),
    "model.regressed": EventKind("newer versions are measured to be worse"),
    "model.recovered": EventKind("newer versions are no longer measured to be worse"),
    "model.withdrawn": EventKind("a version was withdrawn, since most devices can't use it", changes_measures=True),
    "model.deleted": EventKind("the bytes of a version were deleted"),
    "update.accepted": EventKind("an update was accepted into the open round, or the next version", True),
    "update.deferred": EventKind("an update was accepted and waits for the next round", True),
    "update.used": EventKind("an update that waited is in the round that has begun"),
    "update.excluded": EventKind("screening excluded an accepted update from its round"),
    "update.refused": EventKind("an update was refused"),
    "update.quarantined": EventKind("what came as an update is broken or forged, and is kept for a look"),
    "device.pending": EventKind("a device waits for the operator's approval", changes_measures=True),
    "device.approved": EventKind("a device may take part", changes_measures=True),
    "device.enrolled": EventKind("a device was heard for the first time", changes_measures=True),
    "device.collecting": EventKind("the device collects data", changes_measures=True),
    "device.ready": EventKind("the device has data enough and waits for a round", changes_measures=True),
    "device.training": EventKind("the device trains", changes_measures=True),
    "device.uploading": EventKind("the device sends its update", changes_measures=True),
    "device.idle": EventKind("the device takes no part at the moment", changes_measures=True),
    "device.finished": EventKind("the device has heard that the federation has ended", changes_measures=True),
    "device.offline": EventKind("the device is gone", changes_measures=True),
    "device.cloned": EventKind("two programs speak with one device's name", changes_measures=True),
    "device.retained": EventKind("the broker keeps messages that it should not keep", changes_measures=True),
    "device.tags": EventKind("the device's groups were changed", changes_measures=True),
    "device.suspended": EventKind("the device was suspended", changes_measures=True),
    "device.refuses": EventKind("a device refuses the plan, because it promises too little privacy"),
    "device.accepts": EventKind("a device no longer refuses the plan"),
    "device.refuses_model": EventKind("the device can't use a model at all, and has signed that"),
    "device.left_out": EventKind("the device did not answer, and is left out of rounds for a while", True),
    "device.reinstated": EventKind("the device's suspension was ended", changes_measures=True),
    "device.withdrawn": EventKind("the device's sums are taken out of a continuous federation", changes_measures=True),
    "device.revoked": EventKind("the device was put out", changes_measures=True),
    "device.deleted": EventKind("the device was deleted with what it sent", changes_measures=True),
    "rollout.started": EventKind("a version begins to be released", changes_measures=True),
    "rollout.wave": EventKind("the next wave of devices is told", changes_measures=True),
    "rollout.paused": EventKind("no further wave begins", changes_measures=True),
    "rollout.rolling": EventKind("the rollout was resumed", changes_measures=True),
    "rollout.completed": EventKind("every device was told", changes_measures=True),
    "rollout.halted": EventKind("the rollout has ended, and devices go back", changes_measures=True),
    "rollout.adopted": EventKind("a device uses the version", changes_measures=True),
    "rollout.kept": EventKind("a device keeps what it has, which is as good", changes_measures=True),
    "rollout.refused": EventKind("a device refuses the version", changes_measures=True),
    "rollout.failed": EventKind("the version does not work on a device", changes_measures=True),
    "rollout.rolled_back": EventKind("a device went back to the model before", changes_measures=True),
    "adoption.adopted": EventKind("a device uses a model of its own choice", True),
    "adoption.kept": EventKind("a device keeps the model that it has", True),
    "adoption.refused": EventKind("a device refuses a model", True),
    "adoption.failed": EventKind("a model does not work on a device", True),
    "adoption.undecided": EventKind("a device has too little data to tell", True),
}


def meanings() -> str:
    """Return the table as a list in Markdown, for the description of the interface."""
    return "\n".join(f"- `{kind}`: {entry.meaning}" for kind, entry in EVENT_KINDS.items())
