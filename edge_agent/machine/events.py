"""Events of a device: the input of `edge_agent.machine.agent`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from federation.privacy.promises import PrivacyPromises
from federation.protocol.messages import Acknowledgement, Announcement, Invitation, Offer
from har_pipeline import Window

if TYPE_CHECKING:
    pass

Kind = Literal["train", "export", "adopt"]
"""A round's training with the export of its model, that export alone, or the export of a global model."""

AdoptionOutcome = Literal["adopted", "kept", "refused", "failed", "undecided", "none"]
"""What became of a candidate: as in the protocol's `AdoptionReport`; none: there was nothing to judge."""


@dataclass(frozen=True)
class Connected:
    """The broker has taken us, and the subscriptions are sent."""


@dataclass(frozen=True)
class Disconnected:
    """The broker is gone; what was in flight is in doubt."""

    reason: str = ""


@dataclass(frozen=True)
class Announced:
    """The federation said what it is doing."""

    announcement: Announcement


@dataclass(frozen=True)
class MessageRejected:
    """Something came that this device does not take for its server's word; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Invited:
    """This device is in a round's cohort."""

    invitation: Invitation


@dataclass(frozen=True)
class Offered:
    """This device gets a rollout's model as a member of a group."""

    offer: Offer


@dataclass(frozen=True)
class DataReady:
    """The sensor source is done, and so many examples are for training."""

    examples: int
    noun: str = "windows"
    measurable: bool = True
    """Whether there are enough examples, labelled or not, to know how the sensors are: a model can be served then."""
    keys: frozenset[int] = frozenset()
    """Of the windows among them (`training.local_data.window_keys`): what came or went since."""
    unlabelled: frozenset[int] = frozenset()
    """Of a device's windows where none of them has a label."""


@dataclass(frozen=True)
class SensorFailed:
    """The sensor source cannot deliver."""

    reason: str


@dataclass(frozen=True)
class CollectingPaused:
    """The sensor source goes on, but what it delivers is not kept for now; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class CollectingResumed:
    """What the sensor source delivers is kept again."""


@dataclass(frozen=True)
class PhoneConditions:
    """What a phone said about itself; None: it did not say. `at_s` is its own clock, in seconds since 1970.

    battery is the charge between 0 and 1, unmetered false on a connection that costs money.
    """

    at_s: float
    charging: bool | None = None
    battery: float | None = None
    low_power_mode: bool | None = None
    unmetered: bool | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class NewWindows:
    """The sensor source has cut windows, labelled or not, which the device's model may classify: the newest of them."""

    windows: tuple[Window, ...]


@dataclass(frozen=True)
class TrainingConditions:
    """What blocks the beginning of training now, and what its going on, in words; empty: nothing."""

    start: tuple[str, ...] = ()
    to_continue: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlobFetched:
    """A blob is on disk and verified."""

    sha256: str


@dataclass(frozen=True)
class BlobFailed:
    """A blob could not be had."""

    sha256: str
    reason: str


@dataclass(frozen=True)
class TrainingFinished:
    """A round's update and the client's new state are durable; the process goes on to export the model."""

    round: int
    update_id: str
    metrics: dict[str, float] = field(default_factory=dict)
    keys: frozenset[int] = frozenset()
    """Of the windows that it was trained on."""
    sequence: int = 0
    """Of masked sums: their number. `keys` are of the windows that they had when they got it."""


@dataclass(frozen=True)
class ParticipationRead:
    """What the person wishes was read: the device takes part, or is withdrawn."""

    takes_part: bool


@dataclass(frozen=True)
class PrivacyPinRead:
    """A person at the device has accepted what a plan promises."""

    promises: PrivacyPromises


@dataclass(frozen=True)
class WithdrawalReady:
    """The message that takes this device's sums out is durable, and no other update is in the outbox any more."""

    update_id: str


@dataclass(frozen=True)
class SumMessageReady:
    """A message of the round's secure sum is durable, and in the outbox."""

    update_id: str


@dataclass(frozen=True)
class SumMessageFetched:
    """What all members of a secure sum are told by an invitation lies on the disk; `reason`: why it does not."""

    invitation: Invitation
    reason: str = ""


@dataclass(frozen=True)
class CandidateReady:
    """The process has ended and left an exported model."""

    round: int
    kind: Kind


@dataclass(frozen=True)
class JobFailed:
    """The process has ended without leaving what was due."""

    round: int
    kind: Kind
    reason: str
    final: bool = False
    """Whether another try would end in the same way."""
    is_unusable: bool = False
    """Whether the server's model is to blame."""


@dataclass(frozen=True)
class CandidateEvaluated:
    """A candidate was judged."""

    round: int
    kind: Kind
    answer: AdoptionOutcome
    reason: str
    score: float | None = None
    """On the holdout; None: there is none, or the candidate does not run."""
    trivial: float | None = None
    """That of the task's trivial answer there; None: the holdout cannot tell."""
    metric: str = ""
    """Name of the task's primary metric, which the scores are; empty where there are none."""
    with_global: bool = False
    """Whether the global model that the round began from was judged with it."""
    source: Literal["", "personalized", "global"] = ""
    """Whose model it is about; empty: as the kind says."""


@dataclass(frozen=True)
class ModelInUse:
    """The model in use has changed, or was read at the start: it is of this rollout, 0 for none."""

    rollout: int
    score: float | None = None
    metric: str = ""
    name: str = ""
    """What it is called; empty: there is none."""


@dataclass(frozen=True)
class Acknowledged:
    """The server answered about an update."""

    ack: Acknowledgement


@dataclass(frozen=True)
class ChunkDelivered:
    """The broker has taken one chunk."""

    update_id: str


@dataclass(frozen=True)
class ChunksSent:
    """All chunks and the end are with the broker."""

    update_id: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Connected
    | Disconnected
    | Announced
    | MessageRejected
    | Invited
    | Offered
    | DataReady
    | SensorFailed
    | CollectingPaused
    | CollectingResumed
    | PhoneConditions
    | TrainingConditions
    | NewWindows
    | BlobFetched
    | BlobFailed
    | TrainingFinished
    | ParticipationRead
    | PrivacyPinRead
    | WithdrawalReady
    | SumMessageReady
    | SumMessageFetched
    | CandidateReady
    | JobFailed
    | CandidateEvaluated
    | ModelInUse
    | Acknowledged
    | ChunkDelivered
    | ChunksSent
    | Tick
)


def describe(event: Event) -> str:
    """Describe an event in one line; empty for those that the log does not need."""
    match event:
        case Connected():
            return "connected to the broker"
        case Disconnected(reason):
            return f"no connection to the broker: {reason}"
        case Announced(a):
            return f"announced: round {a.round} {a.state}" + (f", {a.invited} devices" if a.invited else "")
        case Invited(invitation):
            return f"invited to round {invitation.round}"
        case Offered(offer):
            return f"release {offer.rollout} is for this device's group"
        case DataReady(examples, noun):
            others = f", {len(event.unlabelled):,} without a label" if event.unlabelled else ""
            return f"{examples:,} {noun} to train on{others}"
        case SumMessageFetched(invitation, reason) if reason:
            return f"the secure sum of round {invitation.round}: {reason}"
        case Acknowledged(ack) if ack.status == "send":
            return f"update {ack.update_id}: the server asks for chunks from {ack.next_chunk} on"
        case _:
            return ""
