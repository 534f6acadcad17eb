"""Views for REST and pages: pydantic models of the rows."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from aggregator_api.storage.db.event_kinds import meanings
from federation.plan import Plan, Words

Item = TypeVar("Item")
AdoptionAnswer = Literal["adopted", "kept", "refused", "failed", "undecided"]
UpdateStatus = Literal["accepted", "deferred", "excluded", "refused", "quarantined"]
EnrolmentState = Literal["open", "pending", "approved", "revoked"]


SIMULATE = "python -m sim run --plan plan.json --data NAME --data-root FOLDER --validation-share 0 --out DIR"
"""The command that simulates a federation; what its devices measure is not known here: NAME and FOLDER.

Devices train on all that they do not test on, so nothing is set aside for validation.
"""


class View(BaseModel):
    """Read from a row's attributes; times are Unix seconds."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Item]):
    """A page of a listing, in order of creation."""

    items: list[Item]
    next_cursor: int | None = Field(description="pass it as `cursor` for what follows; null: this is the end")


class FederationSummary(View):
    """A federation in a listing."""

    id: int
    name: str
    instance: str = Field(description="tells it from an earlier federation of that name")
    status: Literal["running", "paused", "finished", "stopped"]
    created_at: float


class Score(View):
    """What devices have measured of a model version, those whose holdout can tell whether a model works."""

    metric: str = Field(description="the primary metric of the plan's task")
    value: float = Field(description="mean of the metric over the devices, each on its own holdout")
    trivial: float = Field(description="mean of the metric there of the task's trivial answer, which needs no learning")
    devices: int = Field(description="that have measured it")
    working: int = Field(description="of them found that it works; devices that cannot check it go by the majority")
    measured: Literal["version", "updates"] = Field(
        description="updates: few have measured the version yet, this is of the models that it was made from"
    )


class ModelVersion(View):
    """An immutable global model; version 0 is the initial one."""

    id: int
    version: int
    round_number: int = Field(description="the round that made it, 0 for the initial model")
    sha256: str = Field(validation_alias="broadcast_sha256", description="name of the broadcast's blob")
    size: int = Field(validation_alias="broadcast_size")
    created_at: float
    deleted_at: float | None = Field(default=None, description="since then its bytes are not served")
    score: Score | None = Field(default=None, description="null: no device that can tell has measured it")
    url: str = Field(default="", description="where the broadcast is, in wire format")
    aliases: list[str] = Field(default_factory=list, description="latest is the newest, stable the newest good one")


class FeatureModel(View):
    """An ONNX file of the network below the head, for ends without torch, such as a phone's browser."""

    sha256: str = Field(description="name of its blob")
    size: int
    url: str = Field(description="where the file is")


class ContinuousState(View):
    """Where a continuous federation stands, which has no rounds with a cohort and a deadline."""

    devices: int = Field(description="whose sums are in the newest version")
    changes_waiting: int = Field(description="devices whose sums came, changed or went since")
    next_version_at: float | None = Field(
        description="when the next version is published, in Unix time, if nothing else changes; null: nothing waits"
    )


class ProgramView(View):
    """The client's half of a federation as ONNX graphs, which the server makes once it is created."""

    state: Literal["none", "making", "ready", "failed"] = Field(description="without one, devices without torch wait")
    note: str = Field(description="why there is none; empty where there is one, or will be")
    file: FeatureModel | None = Field(description="where it is; null: there is none, or not yet")


class PlanRefusals(View):
    """Why some devices refuse the plan."""

    reason: str = Field(description="in the devices' words: what they were promised, and what the plan promises")
    devices: int = Field(description="that refuse it for this reason")


class FederationDetail(FederationSummary):
    """A federation, what it has agreed on, and where it stands."""

    plan: Plan
    epoch: int = Field(description="of the server: it rises with every restore")
    restored_at: float | None = Field(description="when a restore began the epoch; null: the server was never restored")
    summary: str = Field(description="where it stands, in words")
    round: int = Field(description="number of the latest round, 0 before the first")
    published_rounds: int = Field(description="rounds that count towards plan.rounds.rounds; failed ones do not")
    round_phase: str | None = Field(description="phase of the open round; null if none is open")
    devices: int
    devices_online: int = Field(description="devices that could train now")
    plan_refusals: list[PlanRefusals] = Field(
        description="devices that take no part, because the plan promises less privacy than they require; each has "
        "signed it"
    )
    model: ModelVersion = Field(description="the newest global model, which the next round starts from")
    stable_note: str = Field(description="why the name stable stays where it is; empty where nothing is newer")
    regression: str = Field(description="what devices measured to be worse than before, line by line; empty: nothing")
    feature_model: FeatureModel | None = Field(
        description="what ends without torch compute embeddings with; null: none may join"
    )
    program: ProgramView = Field(description="what devices without torch train by")
    continuous: ContinuousState | None = Field(description="null: the federation works in rounds")

    simulate: str = Field(default=SIMULATE, description="simulates it; plan.json is the answer of GET …/plan")


class FederationPlan(View):
    """What a federation has agreed on; `python -m sim run --plan` reads this answer as it is."""

    plan: Plan
    simulate: str = Field(default=SIMULATE, description="simulates it, where this answer is saved as plan.json")


class TypicalNorm(View):
    """How far a round's updates move the model, in short; the next rounds are judged by it."""

    median: float = Field(description="of the L2 norms")
    updates: int


class RoundView(View):
    """A round."""

    id: int
    number: int
    phase: Literal["announced", "collecting", "aggregating", "published", "failed"]
    paused: bool
    reason: str = Field(description="why it failed")
    noise_multiplier: float | None = Field(description="of its model, where changes were clipped")
    epsilon: float | None = Field(description="of the client that took part most, with this round; null: no bound")
    capped: int = Field(description="updates that count with fewer examples than they claim (rounds.max_weight_ratio)")
    excluded: int = Field(description="updates that were accepted and not used in the end, for their norm")
    norms: dict[str, TypicalNorm] | None = Field(
        description="of the updates that were used, by group of tensors; null: not judged yet"
    )
    deadline_at: float | None
    opened_at: float
    closed_at: float | None


class RoundDetail(RoundView):
    """A round and what has come of it."""

    base_model: str = Field(description="sha256 of the broadcast that the clients start from, if all get the same")
    invited: int
    received: int
    lost: int


class Participant(View):
    """A device's part in a round."""

    device: str
    invited: bool
    outcome: Literal["waiting", "received", "lost"]
    rounds_late: int | None
    base_model: str | None = Field(description="sha256 of the broadcast that it got")
    update_id: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    examples: int | None = Field(default=None, description="that it claims")
    counted_examples: int | None = Field(
        default=None, description="that it counts with; null while the round is open, or if it was left out"
    )
    steps: int | None = None
    norms: dict[str, float] | None = Field(default=None, description="L2 norm of each group of tensors")
    excluded: str | None = Field(default=None, description="why it was not used in the end")
    received_at: float | None = None


class UpdateView(View):
    """An update that was accepted, is deferred to the next round, or will not be used for a reason."""

    id: int
    update_id: str
    device: str
    base_round: int = Field(description="the round that it was trained for")
    status: UpdateStatus = Field(description="excluded: accepted at first, and not used when the round was judged")
    reason: str
    counted_examples: int | None = Field(description="that it counts with, where it claims more")
    sha256: str
    size: int
    received_at: float


class ReportedMetric(View):
    """One figure that a client reported about one round."""

    id: int
    round_number: int
    device: str
    name: str
    value: float
    recorded_at: float


class Device(View):
    """A device and its last word."""

    id: int
    name: str
    state: str
    examples: int
    detail: str
    enrolled_at: float
    seen_at: float
    adoption: AdoptionAnswer | None = Field(
        description="its last word about a model that it might have used; failed: it does not work there; "
        "null: it has judged none"
    )
    adoption_reason: str = Field(description="why, in the device's words")
    tags: list[str] = Field(description="the groups that an operator has put it into")
    enrolment: EnrolmentState = Field(description="open: it has shown no key; only approved ones may claim credentials")
    public_key: str | None = Field(description="base64 of its raw ed25519 key")
    cloned_at: float | None = Field(
        description="when two programs that use its name and password at the same time were last found; revoke it and "
        "enrol it anew if one of them is not yours"
    )
    refused_updates: int = Field(description="updates in a row that were refused for what they hold, or left out")
    suspended_at: float | None = Field(
        description="since when no round invites it (rounds.max_refused_updates); null: it is not suspended. "
        "POST …/reinstate lets it back"
    )
    missed_rounds: int = Field(description="rounds in a row that invited it and did not hear of it by their deadline")
    left_out_until: float | None = Field(
        description="no round draws it before, since it has missed several; null: rounds may draw it"
    )
    suspension_reason: str = Field(description="why it is suspended")
    plan_refusal: str = Field(description="why it refuses the plan, which no round then counts on; empty: it does not")


class Adoption(View):
    """What a device has found about a model that it might have used."""

    source: Literal["personalized", "global"] = Field(description="its own of the round, or the one that came of it")
    answer: AdoptionAnswer = Field(
        description="kept: it works, but another one is expected to do better; failed: it does not work there; "
        "undecided: nobody could check it"
    )
    metric: str = Field(description="the primary metric of the plan's task")
    score: float | None = Field(description="of the metric, on the device's own holdout")
    trivial: float | None = Field(
        description="of the metric, by the task's trivial answer there; null: the holdout cannot tell"
    )
    reason: str
    recorded_at: float


class DeviceRound(View):
    """What one device did in one round."""

    round: int = Field(description="0: what it sent was of no round that could be read")
    phase: str | None = Field(description="of the round; null for round 0")
    invited: bool
    outcome: Literal["waiting", "received", "lost"] | None = Field(description="null: it had no part in the round")
    rounds_late: int | None
    base_model: str | None = Field(description="sha256 of the broadcast that it got")
    updates: list[UpdateView] = Field(description="what it sent for the round, at most the last 20")
    metrics: dict[str, float]
    adoptions: list[Adoption] = Field(description="what it made of the models of this round, by their source")


class DeviceHistory(Page[DeviceRound]):
    """A device and what it did, round by round; the cursor is a round's number."""

    device: Device


class Deleted(BaseModel):
    """What was deleted, or would be."""

    dry_run: bool = Field(description="nothing was deleted, this is what would be")
    rows: dict[str, int] = Field(description="rows by their table")


class Alias(View):
    """A movable name of a model version."""

    alias: str
    version: int
    sha256: str = Field(description="name of the broadcast's blob")
    url: str
    note: str = Field(description="why it was moved there; of latest, and of names that rollouts move, empty")


class Event(View):
    """Something that happened."""

    id: int
    kind: str = Field(description=f"what happened:\n\n{meanings()}")
    round_number: int
    device: str
    detail: str
    created_at: float


class AuditEntry(View):
    """Who did what."""

    id: int
    at: float
    actor: str = Field(description="a key's id, `command line (user)`, `device` or `server`")
    address: str = Field(description="of the client; empty on the server's own machine")
    action: str = Field(description="a noun and a verb, such as devices.revoke")
    federation: str
    device: str
    detail: str
    count: int = Field(description="how many such things within a minute the entry stands for")
    digest: str = Field(description="sha256 over this entry and the digest of the one before")


class Health(BaseModel):
    """Whether the process, and what it depends on, works."""

    status: Literal["ok"] = "ok"


class Problem(BaseModel):
    """An error, as in RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: Words
    instance: Words | None = Field(default=None, description="path of the request")
    errors: list[dict[str, Any]] | None = Field(default=None, description="each wrong field, where there are several")
