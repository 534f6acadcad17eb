"""Commands to the drivers: the output of `edge_agent.machine.agent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edge_agent.machine.events import Kind
from federation.plan import Plan
from federation.privacy.promises import NO_PROMISES, PrivacyPromises
from federation.protocol.messages import (
    AdoptionReport,
    BlobPointer,
    DeviceStatus,
    Invitation,
    ReleaseReport,
    VersionScore,
)


@dataclass(frozen=True)
class PublishStatus:
    """Say on the status topic what the device is doing."""

    status: DeviceStatus


@dataclass(frozen=True)
class Reset:
    """Forget everything learnt in another instance of the federation, or by another network."""

    identity: str
    epoch: int


@dataclass(frozen=True)
class BeginEpoch:
    """Keep that the server was restored, at time `at`: what the device has done before does not count any more."""

    epoch: int
    round: int
    at: float | None


@dataclass(frozen=True)
class Collect:
    """Run the sensor source under this plan's pipeline."""

    plan: Plan


@dataclass(frozen=True)
class FetchBlob:
    """Download a broadcast, and before it the network's ONNX file, if the server has one; without it, it does too."""

    model: BlobPointer
    network: BlobPointer | None = None


@dataclass(frozen=True)
class StartJob:
    """Start the training process for a round, or for the final model."""

    kind: Kind
    round: int
    model: BlobPointer
    plan: Plan
    chunk_bytes: int
    continuous: bool = False
    network: BlobPointer | None = None  # its ONNX file, if it was announced
    sum_request: str = ""  # of the round's secure sum, as it came; empty: the update is sent as such


@dataclass(frozen=True)
class StopJob:
    """End the training process; what it has not finished is lost."""

    reason: str


@dataclass(frozen=True)
class Evaluate:
    """Say whether the candidate works, and is better than the present model; `release`: its rollout's number, or 0.

    `server_score` is what the server knows of its version, or of the one that it began from; `gains` what other
    devices report of that version's rivals (`federation.rounds.serving`), by name.
    """

    round: int
    kind: Kind
    release: int = 0
    server_score: VersionScore | None = None
    gains: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Rollback:
    """Use the model from before that release again; it was withdrawn."""

    release: int


@dataclass(frozen=True)
class SaveReleaseReport:
    """Keep what the device says about a release."""

    report: ReleaseReport


@dataclass(frozen=True)
class SaveAdoptionReport:
    """Keep what the device says about the last candidate."""

    report: AdoptionReport


@dataclass(frozen=True)
class SendBegin:
    """Publish the manifest."""

    update_id: str


@dataclass(frozen=True)
class SendChunks:
    """Publish the chunks from `first` on, then the end."""

    update_id: str
    first: int


@dataclass(frozen=True)
class StopSending:
    """Publish no further chunks."""


@dataclass(frozen=True)
class ForgetUpdate:
    """Delete the update: the server has it for good, or will never use it."""

    update_id: str
    status: Literal["accepted", "refused"]
    reason: str


@dataclass(frozen=True)
class PrepareWithdrawal:
    """Put the message that takes this device's sums out into the outbox, in place of all that waits there."""

    round: int
    base: str
    method: str
    chunk_bytes: int


@dataclass(frozen=True)
class AnswerSum:
    """Take what the server says in the secure sum of a round, and put the answer into the outbox."""

    invitation: Invitation


@dataclass(frozen=True)
class ForgetContribution:
    """Keep that it is not known what the server has of this device."""


@dataclass(frozen=True)
class SkipRound:
    """Note that this device takes no part in the round."""

    round: int
    base: str
    reason: str


@dataclass(frozen=True)
class ForgetCandidate:
    """Delete the checkpoint of a trained round: its model was judged, or cannot be."""

    round: int


@dataclass(frozen=True)
class GlobalModelJudged:
    """Note that this global model of the federation has been dealt with."""

    sha256: str


@dataclass(frozen=True)
class KeepPrivacyPin:
    """Keep what the server's plan promised when this device enrolled: no other plan may promise less."""

    promises: PrivacyPromises


@dataclass(frozen=True)
class NoteRefusedPlan:
    """Keep why the present plan is refused, and what it promises; an empty reason: it isn't."""

    reason: str = ""
    promises: PrivacyPromises = NO_PROMISES


@dataclass(frozen=True)
class Log:
    """Tell the person who watches."""

    text: str


@dataclass(frozen=True)
class Exit:
    """End the program."""

    code: int


Command = (
    PublishStatus
    | Reset
    | BeginEpoch
    | Collect
    | FetchBlob
    | StartJob
    | StopJob
    | Evaluate
    | Rollback
    | SaveReleaseReport
    | SaveAdoptionReport
    | SendBegin
    | SendChunks
    | StopSending
    | ForgetUpdate
    | PrepareWithdrawal
    | AnswerSum
    | ForgetContribution
    | SkipRound
    | ForgetCandidate
    | GlobalModelJudged
    | KeepPrivacyPin
    | NoteRefusedPlan
    | Log
    | Exit
)
