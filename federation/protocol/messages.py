"""The JSON messages of the live protocol, validated by pydantic before use."""

from __future__ import annotations

import hashlib
import math
import operator
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from federation.errors import WireError
from federation.plan import Name, Plan, Strict, Text, Words
from federation.rounds import gains as gain_sums
from gaitway.errors import first_problem
from gaitway.tasks import DEFAULT_TASK, metric_of, trivial_answer

SchemaVersion = Annotated[Literal[1], Field(description="of this message's format")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the bytes, in hexadecimal")]
UpdateId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="r{round}-{client}-{sha256[:16]}, or s{sequence}-{client}-{sha256[:8]} in a continuous federation",
    ),
]
Instance = Annotated[
    str, Field(pattern=r"^[0-9a-f]{32}$", description="random id of this federation among those of its name")
]
"""Tells a federation from another one of the same name, such as one that was founded anew."""

Precision = Literal["lossless", "float16", "int8"]
"""How an update's float32 tensors travel; int8: the larger ones as changes, with error feedback."""

Compression = Literal["none", "zstd"]

Runtime = Literal["torch", "onnx"]
"""What computes a device's rounds: torch, or ONNX Runtime with the federation's program."""
Processor = Literal["cpu", "cuda"]
"""Where it computes them."""

TrainedBy = Literal["torch", "onnx", "onnxruntime-web"]
"""What trained an update: a device's runtime, or the federation's program in a browser."""

Epoch = Annotated[
    int, Field(ge=1, lt=1 << 53, description="rises when the server is restored from a backup; the first is 1")
]
"""Counts how often a server was restored: it only rises, while all its other numbers may come again."""

MAX_WITHDRAWN = 32
"""Halted rollouts that an order names: the latest."""

MAX_ROUNDS = 2**31 - 1
"""Rounds of one federation, versions and rollouts: what every end of the wire can count to."""

NO_BYTES_SHA256 = hashlib.sha256(b"").hexdigest()

MESSAGE_BYTES = 256 * 1024
"""No JSON message of the protocol may be larger."""

MAX_VOUCHER, MAX_REVOKED_LIST = 400, 32 * 1024
"""Of a device's voucher, and of the list of identities that are revoked."""

MAX_AHEAD_MS = 86_400_000
"""A device's running number is at most so far above Unix time in ms."""

MAX_SUM_BODY = 200 * 1024
"""Of what the server says in a secure sum: the list of the most members that a live one has."""

SumPart = Literal["keys", "shares", "vector", "list", "opened"]
"""What a device says in a secure sum, in this order."""


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


MeasuredName = Annotated[Text, Field(min_length=1, max_length=64)]
Measured = Annotated[float, Field(allow_inf_nan=True)]
Metrics = Annotated[dict[MeasuredName, Measured], Field(max_length=64), AfterValidator(_finite)]
"""What a device measured; NaN and infinity, which JSON cannot say, are left out."""


MAX_CLASS_SCORES = 20
"""Classes whose scores a device reports; those of more would leave no room for its other metrics."""


def class_score_names(classes: int) -> list[str]:
    """Return under which names a device reports how well its trained model does on each class of its holdout."""
    return [f"class_{k}_after" for k in range(min(classes, MAX_CLASS_SCORES))]


CandidateName = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,39}$")]
MAX_CANDIDATES = 8
GainSums = Annotated[
    tuple[Annotated[int, Field(ge=-gain_sums.MAX_SUM, le=gain_sums.MAX_SUM)], ...],
    Field(min_length=3, max_length=gain_sums.length(gain_sums.MAX_CLASSES)),
    AfterValidator(gain_sums.checked),
]
Gains = Annotated[dict[CandidateName, GainSums], Field(max_length=MAX_CANDIDATES)]
"""How much models gain over the shared one, by model, in whole numbers (`federation.rounds.gains`)."""

DEFAULT_METRIC = DEFAULT_TASK.primary_metric
"""What a score is where no metric is named."""

MetricName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]


def _require_plausible(metric: str, *values: float | None) -> None:
    largest = metric_of(metric).largest
    if any(value is not None and value > largest for value in values):
        raise ValueError(f"a {metric} above {largest:g} is none")


class ScoredMessage(Strict):
    """A message that says a score, and in which metric; without one it is the default's."""

    metric: MetricName = Field(default=DEFAULT_METRIC, description="the primary metric of the plan's task")


class VersionScore(ScoredMessage):
    """What devices have measured of a model version, those whose holdout can tell; all of them count alike.

    A device that cannot check a model itself goes by it. Whole numbers, as they are signed.
    """

    # read by phone/generate.py: JSON Schema itself cannot say it
    model_config = ConfigDict(json_schema_extra={"notAbove": {"working": "devices"}})

    value: int = Field(ge=0, le=10**12, description="mean of the metric, in millionths")
    trivial: int = Field(ge=0, le=10**12, description="mean of the metric of the task's trivial answer, in millionths")
    devices: int = Field(ge=1, le=MAX_ROUNDS, description="that have measured it")
    working: int = Field(ge=0, le=MAX_ROUNDS, description="of them found that it works")
    measured: Literal["version", "updates"] = Field(
        description="updates: nobody has measured the version yet, this is of the models that it was made from"
    )

    @model_validator(mode="after")
    def _plausible(self) -> VersionScore:
        if self.working > self.devices:
            raise ValueError(f"{self.working} of {self.devices} devices found that it works")
        _require_plausible(self.metric, self.value / 1e6, self.trivial / 1e6)
        return self

    @property
    def is_sound(self) -> bool:
        """Whether the version works, by the word of most devices."""
        return 2 * self.working > self.devices

    @property
    def words(self) -> str:
        """Say who found what."""
        what = "it" if self.measured == "version" else "the models that it was made from"
        label, mean, trivial = metric_of(self.metric).label, self.value / 1e6, self.trivial / 1e6
        return (
            f"by {self.working} of {self.devices} devices that have measured {what} it works: {label} {mean:.3f} on "
            f"their holdouts against {trivial:.3f} {trivial_answer(self.metric)}"
        )


class BlobPointer(Strict):
    """Where a blob is, and what it must be."""

    sha256: Sha256
    size: int = Field(ge=0, le=1 << 34, description="bytes")
    url: Text = Field(max_length=1024, description="relative to the server's base URL, or absolute and of its origin")
    score: VersionScore | None = Field(default=None, description="of the version that it is of; none: not known")
    gains: Gains = Field(
        default={},
        # left out where there are none, so that devices of a version without them go on
        exclude_if=operator.not_,
        description="sums of the gains that the devices of the version's updates reported",
    )


class Release(Strict):
    """A model version that a rollout gives to devices; `rollout` is the rollout's number in its federation."""

    rollout: int = Field(ge=1, le=MAX_ROUNDS, description="number of the rollout")
    version: int = Field(ge=0, le=MAX_ROUNDS, description="number of the model version")
    round: int = Field(ge=0, le=MAX_ROUNDS, description="that made the version")
    model: BlobPointer = Field(description="the version's tensors, in wire format")


class ReleaseOrder(Strict):
    """Which model devices are to use: all of them `released`, but those in the share or with an `Offer` `candidate`.

    Whoever uses a withdrawn rollout's model leaves it. The order holds until one with a higher serial replaces it.
    """

    serial: int = Field(ge=0, lt=1 << 53, description="rises with every change")
    released: Release | None = Field(default=None, description="of the last completed rollout; none: none was")
    candidate: Release | None = Field(default=None, description="of the rollout that is under way")
    share_millionths: int = Field(
        default=0, ge=0, le=1_000_000, description="share of the devices that get the candidate"
    )
    withdrawn: tuple[Annotated[int, Field(ge=0, le=MAX_ROUNDS)], ...] = Field(
        default=(), max_length=MAX_WITHDRAWN, description="rollouts that were halted"
    )


class Announcement(Strict):
    """Retained on the announce topic: what the federation is doing. Its size does not depend on the cohort.

    Ordered by (epoch, serial): a device that has enrolled takes none that is older than the newest it has believed.
    `collecting`: devices that hold an `Invitation` to this round train and upload before the deadline; where it is
    `continuous`, all that have enrolled send when they have something new.
    `waiting`: not enough devices yet. `finished`: `model` is the last broadcast.
    """

    schema_version: SchemaVersion = 1
    federation: Name
    instance: Instance
    epoch: Epoch = 1
    restored_at: float | None = Field(
        default=None, description="when the epoch began, in Unix time; none: the first one"
    )
    serial: int = Field(default=0, ge=0, lt=1 << 53, description="never falls within an epoch")
    state: Literal["waiting", "collecting", "aggregating", "paused", "finished", "stopped"] = Field(
        description="collecting: invited devices train and upload; waiting: for devices; finished: `model` is the last"
    )
    round: int = Field(ge=0, le=MAX_ROUNDS, description="the round under way")
    invited: int = Field(default=0, ge=0, le=10**9, description="how many devices hold an invitation to this round")
    deadline: float | None = Field(default=None, description="Unix time in seconds")
    plan: Plan = Field(description="what the federation trains, and how")
    model: BlobPointer | None = Field(
        default=None, description="the present broadcast to a client that the server knows nothing of, in wire format"
    )
    continuous: bool = Field(
        default=False,
        # left out where it is false, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="there are no cohorts and no deadlines: whoever has enrolled sends its whole sums whenever enough "
        "of its windows have changed (`plan.publication`); `round` is the number of the next version. With "
        "`secure.mode`, whoever is invited adds its whole sums to that of the round",
    )
    feature_model: BlobPointer | None = Field(
        default=None,
        exclude_if=lambda pointer: pointer is None,
        description="an ONNX file of the network below the head, for ends without torch: windows `x`, as "
        "`plan.data.normalization` has them, to `embedding` (B, D); none: such ends cannot take part",
    )
    program: BlobPointer | None = Field(
        default=None,
        exclude_if=lambda pointer: pointer is None,
        description="the client's half of a round as ONNX graphs in one archive, for ends without torch; none: there "
        "is none, or not yet, and such ends cannot train",
    )
    release: ReleaseOrder | None = Field(default=None, description="which model to use; none: nothing was released")
    revoked: str = Field(
        default="",
        max_length=MAX_REVOKED_LIST,
        exclude_if=operator.not_,
        description="of a plan with `secure.voucher`: identities that its key revokes, signed by it",
    )
    chunk_bytes: int = Field(
        default=128 * 1024, ge=1024, le=1 << 20, description="bytes of an upload's chunks, but for the last"
    )
    presence_check: Text = Field(
        default="", max_length=64, description="where it has changed, devices say their status again"
    )
    created: float = Field(description="Unix time in seconds")
    expires: int | None = Field(default=None, ge=0, lt=1 << 53, description="Unix time in seconds; none: never")


class SumOrder(Strict):
    """What the server says to a device in the secure sum of a round: a message of `federation.secure_sums.messages`."""

    kind: Literal["request", "members", "shares", "included", "confirmed"] = Field(
        description="which message `body` is"
    )
    body: Text = Field(max_length=MAX_SUM_BODY, description="the message, as JSON in a text: devices sign its bytes")
    shared: BlobPointer | None = Field(
        default=None,
        exclude_if=lambda pointer: pointer is None,
        description="to the part of the message that all members are told alike, where it is long: of `members` all of "
        "it, of `confirmed` the signatures",
    )


class Invitation(Strict):
    """Retained on a device's invitation topic: it is in that round's cohort, and trains from `model`.

    It holds while the announcement collects for the same round of the same instance and epoch; the next one replaces
    it. Where the round's updates are added up by a secure sum, one comes for each of its stages, the first with the
    request, the others while the announcement says `aggregating`.
    """

    schema_version: SchemaVersion = 1
    instance: Instance
    epoch: Epoch = 1
    round: int = Field(ge=0, le=MAX_ROUNDS, description="0: before the first one of an epoch nothing is asked")
    model: BlobPointer = Field(description="what this device gets; where methods say so, others get something else")
    sum: SumOrder | None = Field(
        default=None,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda order: order is None,
        description="of a plan with `secure.mode`: what the round's secure sum asks of this device now",
    )
    voucher: str = Field(
        default="",
        max_length=MAX_VOUCHER,
        exclude_if=operator.not_,
        description="of a plan with `secure.voucher`: the device's own, which it shows to the other members of a sum",
    )


class Offer(Strict):
    """Retained on a device's offer topic: a wave of groups gives it that rollout's model, whatever its share is.

    It holds while the announcement's order has the rollout as candidate, of the same instance and epoch.
    """

    schema_version: SchemaVersion = 1
    instance: Instance
    epoch: Epoch = 1
    rollout: int = Field(ge=1, le=MAX_ROUNDS, description="number of the rollout")


class ReleaseReport(ScoredMessage):
    """What became of the latest released model on a device. It is repeated with every status, so none is ever lost."""

    instance: Instance
    epoch: Epoch = 1
    rollout: int = Field(ge=1, le=MAX_ROUNDS, description="number of the rollout")
    answer: Literal["adopted", "kept", "refused", "failed", "rolled_back"] = Field(
        description="what the device did with the model"
    )
    score: float | None = Field(default=None, ge=0, description="of the metric, on the device's own holdout")
    reason: Words = Field(default="", max_length=500, description="why, for people")

    @model_validator(mode="after")
    def _plausible(self) -> ReleaseReport:
        _require_plausible(self.metric, self.score)
        return self


class AdoptionReport(ScoredMessage):
    """A device's last judgement of a model that it might have used. It is repeated with every status.

    `adopted`: it uses the model. `kept`: the model works, but the device is expected to do better with another one.
    `refused`: a released model is shown to be worse than the present one. `failed`: it does not work. `undecided`: the
    device cannot check it, and nobody else could; the present model stays.
    """

    instance: Instance
    epoch: Epoch = 1
    round: int = Field(ge=0, le=MAX_ROUNDS, description="that made the model")
    source: Literal["personalized", "global"] = Field(description="the device's own model, or the shared one")
    answer: Literal["adopted", "kept", "refused", "failed", "undecided"] = Field(description="the device's judgement")
    score: float | None = Field(default=None, ge=0, description="of the metric, on the device's own holdout")
    trivial: float | None = Field(
        default=None, ge=0, description="of the metric, by the task's trivial answer there; none: it cannot tell"
    )
    reason: Words = Field(default="", max_length=500, description="why, for people")

    @model_validator(mode="after")
    def _plausible(self) -> AdoptionReport:
        _require_plausible(self.metric, self.score, self.trivial)
        return self


class PlanRefusal(Strict):
    """Signed by a device: it takes no part under a plan, since the plan promises less privacy than the device requires.

    It's in the device's status for as long as it holds, as `gaitway-signed/1 …` (`federation.protocol.signing`).
    """

    instance: Instance
    epoch: Epoch = 1
    serial: int = Field(ge=0, lt=1 << 53, description="of the announcement with the plan")
    reason: Text = Field(max_length=500, description="which promise is too little, for people")


class ModelRefusal(Strict):
    """Signed by a device: it can't use a model of the server at all, though it has the announced bytes.

    They can't be read, don't fit the plan, hold NaN or infinity, or leave it in training. A model that works, but is
    worse than another one, isn't refused so. The device repeats it with every status until another model works.
    """

    instance: Instance
    epoch: Epoch = 1
    model: Sha256 = Field(description="of the broadcast that can't be used")
    reason: Text = Field(min_length=1, max_length=500, description="why, for people")


MAX_SIGNED_REFUSAL = 4096


class DeviceStatus(Strict):
    """On a device's status topic, not retained; `offline` is also its last will."""

    schema_version: SchemaVersion = 1
    state: Literal["collecting", "ready", "training", "uploading", "idle", "finished", "offline"] = Field(
        description="collecting: not enough windows yet, or no part is taken; ready and idle: may be invited"
    )
    round: int = Field(default=0, ge=0, le=MAX_ROUNDS, description="that the device works on, or did last")
    examples: int = Field(default=0, ge=0, le=10**9, description="training examples that the device has")
    detail: Words = Field(default="", max_length=500, description="more about the state, for people")
    metrics: Metrics = Field(default_factory=dict, description="numbers about the device, by name")
    sums: int = Field(
        default=0,
        ge=0,
        lt=1 << 53,
        # left out where there is none, so that servers of a version without it go on
        exclude_if=operator.not_,
        description="of a continuous federation with `secure.mode`: the `sequence` that the device added its sums with "
        "last, if it would add the same ones now; 0: it would add others, or none",
    )
    release: ReleaseReport | None = Field(default=None, description="about the latest released model")
    adoption: AdoptionReport | None = Field(default=None, description="the device's last judgement of a model")
    refusal: str = Field(
        default="",
        max_length=MAX_SIGNED_REFUSAL,
        exclude_if=operator.not_,
        description="a `PlanRefusal`, signed by the device where it has a key; empty: it refuses no plan",
    )
    unusable: str = Field(
        default="",
        max_length=MAX_SIGNED_REFUSAL,
        exclude_if=operator.not_,
        description="a `ModelRefusal`, signed by the device where it has a key; empty: it refuses no model",
    )
    session: Text = Field(default="", max_length=64, description="random, drawn anew by each run of the program")
    number: int = Field(default=0, ge=0, lt=1 << 53, description="rises with each status of a session")


class UpdateManifest(Strict):
    """Sent as `begin`, signed by a device that has enrolled: everything about an update except its bytes."""

    schema_version: SchemaVersion = 1
    update_id: UpdateId
    federation: Name
    instance: Instance
    client: Name = Field(description="the device's id, as in the topic")
    round: int = Field(
        ge=1, le=MAX_ROUNDS, description="of the invitation; in a continuous federation the announced one"
    )
    method: Text = Field(max_length=64, description="the name in the plan's `method`")
    base_version: Sha256 = Field(description="sha256 of the broadcast that training started from")
    sequence: int | None = Field(
        default=None,
        ge=1,
        lt=1 << 53,
        # left out where there is none, so that servers of a version without it go on
        exclude_if=lambda number: number is None,
        description="of a continuous federation: the device's running number, which rises with each update, "
        "max(the last one + 1, Unix time in ms), at most a day ahead of the server's clock; it replaces the device's "
        "update with a lower one. With the keys of a secure sum: the number of the sums, which rises when they change",
    )
    withdraw: bool = Field(
        default=False,
        exclude_if=operator.not_,
        description="of a continuous federation: take the device's sums out; no examples, steps and bytes",
    )
    sum: SumPart | None = Field(
        default=None,
        exclude_if=lambda part: part is None,
        description="of a plan with `secure.mode`: the bytes are this message of the round's secure sum, signed (the "
        "vector's head and its numbers: `federation.secure_sums.uploads`); no examples, steps and metrics are told",
    )
    examples: int = Field(ge=0, le=10**9, description="at least 1, but for a withdrawal and a secure sum")
    steps: int = Field(ge=0, le=10**9, description="mini-batches that were trained on")
    class_counts: tuple[Annotated[int, Field(le=10**9)], ...] | None = Field(
        default=None, max_length=10_000, description="examples of each class, in the order of the plan's labels"
    )
    precision: Precision = Field(default="lossless", description="how float32 tensors travel")
    compression: Compression = Field(default="none", description="of the whole file of tensors")
    runtime: TrainedBy = Field(
        default="torch",
        # left out where it is torch, so that servers of a version without it go on
        exclude_if=lambda runtime: runtime == "torch",
        description="what trained it",
    )
    processor: Processor = Field(
        default="cpu",
        exclude_if=lambda processor: processor == "cpu",
        description="where: on the CPU, or on a GPU by CUDA",
    )
    size: int = Field(ge=0, le=1 << 34, description="bytes that are sent, after compression")
    sha256: Sha256 = Field(description="of the bytes that are sent, after compression")
    chunk_bytes: int = Field(ge=1024, le=1 << 20, description="bytes of each chunk but the last")
    nonce: Text = Field(min_length=8, max_length=64, description="random; the server's answer repeats it")
    created: float = Field(description="Unix time in seconds")
    metrics: Metrics = Field(default_factory=dict, description="scores and losses of the training, by name")
    gains: Gains = Field(
        default={},
        # left out where there are none, so that servers of a version without them go on
        exclude_if=operator.not_,
        description="how much the device's models gain over the shared one on its held-out windows",
    )

    @model_validator(mode="after")
    def _of_one_device(self) -> UpdateManifest:
        for name, sums in self.gains.items():
            if sums[0] != 1:
                raise ValueError(f"gains.{name}: got the gains of {sums[0]} devices; a device reports its own")
        return self

    @model_validator(mode="after")
    def _empty_where_it_must_be(self) -> UpdateManifest:
        if self.sum is not None:
            fields = (self.examples, self.steps, self.class_counts, self.metrics, self.withdraw)
            form = (self.precision, self.compression)
            if self.gains or fields != (0, 0, None, {}, False) or form != ("lossless", "none"):
                raise ValueError(
                    "sum: examples, steps, class_counts, metrics, gains, withdraw or a lossy or compressed form came "
                    "with a message of a secure sum; it tells none of them, for the server is to learn the sum alone"
                )
            if self.sequence is not None and self.sum != "keys":
                raise ValueError(f"sequence: it came with {self.sum}; of a secure sum only the keys have one")
            return self
        if not self.withdraw:
            if self.examples < 1:
                raise ValueError("examples: 0 came; an update has at least 1, unless it says withdraw")
            return self
        if self.sequence is None:
            raise ValueError("withdraw: no sequence came; a withdrawal has one, as every update that it follows")
        if self.gains or (self.examples, self.steps, self.size, self.sha256) != (0, 0, 0, NO_BYTES_SHA256):
            raise ValueError(
                f"withdraw: examples = {self.examples}, steps = {self.steps}, size = {self.size} came; a withdrawal "
                "has 0 of each, the sha256 of no bytes, and no gains"
            )
        return self


class Notice(Strict):
    """To one run of a device's program: another one uses the device's name, and was there first. It is to stop."""

    schema_version: SchemaVersion = 1
    session: Text = Field(max_length=64, description="whom it is for; others that hear it go on")
    reason: Words = Field(max_length=500, description="for people")


class Acknowledgement(Strict):
    """The server's answer about one update.

    `send`: chunks from `next_chunk` on are missing. `accepted`: the update is on disk and in SQL; the device may
    forget it; `reason` says so if it is partial work, or kept for the next round. `refused`: it will never be used,
    for `reason`. `retry`: the server cannot take it now, for `reason`; the device begins again after its time-out.
    `nonce` is that of the manifest, so that an answer to another update of the same id and bytes means nothing.
    """

    schema_version: SchemaVersion = 1
    update_id: UpdateId
    nonce: Text = Field(default="", max_length=64, description="of the manifest; empty: the server could not read it")
    status: Literal["send", "accepted", "refused", "retry"] = Field(description="the answer, as above")
    next_chunk: int = Field(default=0, ge=0, le=10_000_000, description="with `send`: the first chunk that is missing")
    reason: Words = Field(default="", max_length=1000, description="why, for people")


Message = TypeVar("Message", bound=Strict)


def write(message: Strict) -> bytes:
    """Encode a message as JSON."""
    return message.model_dump_json().encode()


def read(kind: type[Message], payload: bytes) -> Message:
    """Decode and validate a message.

    Raises:
        WireError: if it is too large, not JSON, or not of that kind.
    """
    if len(payload) > MESSAGE_BYTES:
        raise WireError(f"a {kind.__name__} of {len(payload):,} bytes came, at most {MESSAGE_BYTES:,} are read")
    try:
        return kind.model_validate_json(payload)
    except ValidationError as error:
        raise WireError(f"not a valid {kind.__name__}: {first_problem(error)}") from error
