"""What a federation has agreed on before its first round, as JSON: the model, the method, the training, the rounds.

The simulation reads it from `--plan` and its command line, the server from REST, a device from the announcement.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""A federation's, device's or model's name: safe in a topic, a path and a URL."""


class Strict(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TrainingConfig(Strict):
    """How a client trains in a round, and the size of what it learns."""

    classes: int = Field(ge=2, le=10_000)
    feature_dim: int = Field(default=192, ge=1, le=65_536)
    epochs: int = Field(default=1, ge=1, le=10_000)
    batch_size: int = Field(default=64, ge=1, le=65_536)
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0, le=100)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    seed: int = Field(default=0, ge=0, lt=2**63)


class ModelSpec(Strict):
    """A network by its name in `models.MODELS`, and its options."""

    name: Name
    options: dict[str, Any] = Field(default_factory=dict)


class RoundSettings(Strict):
    """How the cohort of a round is selected and when the round closes."""

    rounds: int = Field(default=10, ge=1, le=1_000_000)
    clients_per_round: int | None = Field(default=None, ge=1, description="none: every client")
    sampling: Literal["uniform", "examples"] = Field(
        default="uniform", description="examples: a client is drawn in proportion to how many it has"
    )
    cohort_tags: tuple[Name, ...] = Field(
        default=(), max_length=32, description="draw only from devices in one of these groups; none: from all"
    )
    over_selection: float = Field(default=1.0, ge=1, le=10, description="invite this many times more")
    minimum_clients: int = Field(default=1, ge=1, description="updates needed at the deadline")
    deadline_s: float | None = Field(default=None, gt=0, description="none: wait for every client")
    late: Literal["drop", "next"] = Field(default="drop", description="next: use in the next round, discounted")
    partial_work: Literal["method", "drop", "use"] = Field(
        default="method", description="what a straggler did before the deadline; method: as its paper does"
    )
    staleness_exponent: float = Field(default=0.5, ge=0, description="discount = (1 + rounds late)^-exponent")
    max_weight_ratio: float | None = Field(
        default=2.0,
        ge=1,
        le=1e6,
        description="an update weighs at most this many times the median of its round's examples; none: as it says",
    )
    norm_factor: float | None = Field(
        default=10.0, gt=1, description="leave out what moves the model by this many times the median; none: nothing"
    )
    clip_norm: float | None = Field(
        default=None, gt=0, description="clip each client's change to this L2 norm, and weigh clients equally"
    )
    noise_multiplier: float = Field(
        default=0.0, ge=0, le=1e6, description="Gaussian noise on the sum of the changes, in units of clip_norm"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="the δ at which ε is stated")
    norm_after: int = Field(
        default=8, ge=1, description="updates of earlier rounds before their median refuses others as they arrive"
    )


class GroupWave(Strict):
    """A wave of a rollout that goes to groups of devices, besides those that have the model already."""

    tags: tuple[Name, ...] = Field(min_length=1, max_length=32, description="devices in one of these groups")


Wave = Annotated[float, Field(gt=0, le=1)] | GroupWave
"""A share of the devices, or groups of them."""


def _growing(waves: tuple[Wave, ...]) -> tuple[Wave, ...]:
    shares = [wave for wave in waves if not isinstance(wave, GroupWave)]
    if waves[-1] != 1 or any(after <= before for before, after in zip((0.0, *shares), shares, strict=False)):
        raise ValueError("shares of waves must grow, and the last wave must be 1, which is every device")
    return waves


Waves = Annotated[tuple[Wave, ...], Field(min_length=1, max_length=16), AfterValidator(_growing)]


class RolloutSettings(Strict):
    """How a model version is released to devices, in growing waves, as `federation.rounds.rollout` carries it out."""

    mode: Literal["off", "manual", "automatic"] = Field(
        default="off",
        description="off: a device uses what it trained itself, and in the end the federation's last model; "
        "manual: it uses what an operator releases; automatic: each published version is released, one after another",
    )
    waves: Waves = Field(
        default=(0.05, 0.25, 1.0), description='shares of the devices, or groups of them: {"tags": ["pilot"]}'
    )
    success_threshold: float = Field(
        default=0.8, gt=0, le=1, description="share of a wave that must have adopted the model"
    )
    soak_s: float = Field(default=3600.0, ge=0, le=3.2e7, description="a wave lasts at least so long")
    wave_timeout_s: float = Field(
        default=86_400.0,
        ge=0,
        le=3.2e7,
        description="after so long a wave no longer waits for devices that have not answered",
    )
    halt_share: float = Field(default=0.1, gt=0, le=1, description="halted when so many of the answers are failures,")
    halt_devices: int = Field(default=2, ge=1, le=10**9, description="and at least so many devices have failed")

    def share_of(self, wave: int) -> float:
        """Return the share of the devices that a wave has reached; a wave of groups leaves it as it was before."""
        return max((one for one in self.waves[: wave + 1] if not isinstance(one, GroupWave)), default=0.0)

    def tags_of(self, wave: int) -> tuple[str, ...]:
        """Return the groups that a wave goes to; none: it goes to a share of all devices."""
        found = self.waves[wave]
        return found.tags if isinstance(found, GroupWave) else ()

    @property
    def used(self) -> bool:
        """Whether devices use what is released to them, and nothing else."""
        return self.mode != "off"


class DataStatistics(Strict):
    """Count of samples, and the sum and square sum of each channel, which all clients are normalized with."""

    count: int = Field(ge=0)
    total: tuple[float, ...]
    square: tuple[float, ...]


Normalization = Literal["client", "federated", "pooled", "none"]
Split = Literal["temporal", "random80", "kfold7_3"]


class DataSpec(Strict):
    """How a client turns its own samples into training examples; har_pipeline reads `pipeline`."""

    pipeline: dict[str, Any] = Field(default_factory=dict)
    normalization: Normalization = Field(
        default="client",
        description="client: by the statistics of its own training windows; federated: by the sum of all clients' "
        "statistics, which devices get in `statistics`; pooled: by those of all windows laid together, in a simulation",
    )
    statistics: DataStatistics | None = Field(
        default=None, description="of federated normalization; a simulation computes them where they are missing"
    )
    split: Split = Field(
        default="temporal",
        description="temporal: the last windows of each class are the test set, no leak; the other two leak, and are "
        "for a simulation that repeats a paper",
    )
    test_share: float = Field(default=0.2, gt=0, lt=1)


class Plan(Strict):
    """One federation, in the words that the simulation, the server and a device share."""

    labels: tuple[str, ...] = Field(min_length=2)
    model: ModelSpec
    alternatives: tuple[ModelSpec, ...] = Field(
        default=(), description="other models that a device may choose, if the method mixes architectures"
    )
    method: dict[str, Any] = Field(description='{"name": "fedali", …hyper-parameters}')
    training: TrainingConfig
    rounds: RoundSettings = RoundSettings()
    rollout: RolloutSettings = RolloutSettings()
    data: DataSpec = DataSpec()


def live_obstacle(plan: Plan) -> str | None:
    """Say in words what of a plan devices cannot do, and what to do about it; None where they can do all of it."""
    data = plan.data
    if data.split != "temporal":
        return (
            f"data.split = {data.split!r} leaks between windows that overlap, so it is for simulations alone; "
            "use 'temporal'"
        )
    if data.normalization == "pooled":
        return (
            "data.normalization = 'pooled' needs all windows in one place, so it is for simulations alone; use "
            "'federated', which has the same statistics up to rounding, or 'client'"
        )
    if data.normalization == "federated" and data.statistics is None:
        return (
            "data.normalization = 'federated' needs data.statistics, the sum of the clients' statistics, which devices "
            "do not report: take them from the plan.json of a simulated run, or use 'client'"
        )
    return None
