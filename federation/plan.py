"""What a federation has agreed on before its first round, as JSON: the model, the method, the training, the rounds.

The simulation reads it from `--plan` and its command line, the server from REST, a device from the announcement.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gaitway import plugins
from gaitway.errors import did_you_mean
from gaitway.input_spec import Fit
from gaitway.tasks import DEFAULT_TASK, TASKS, TargetKind, task_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""A federation's, device's or model's name: safe in a topic, a path and a URL."""


class Strict(BaseModel):
    """Frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Change = Annotated[float, Field(ge=0, le=1)]


class Augmentation(Strict):
    """How images or windows are changed at random each time they are trained on; as it is here, nothing is changed.

    As text `flip=0.5,padding=4,scale=0.5:2`, or `rotation=1` for windows; `none` where nothing is changed.
    """

    flip: float = Field(default=0.0, ge=0, le=1, description="how likely an image is mirrored, left to right")
    padding: int = Field(
        default=0, ge=0, le=1024, description="pixels that are added at each side before a crop of the old size"
    )
    scale: tuple[Annotated[float, Field(ge=0.1, le=10)], Annotated[float, Field(ge=0.1, le=10)]] = Field(
        default=(1.0, 1.0), description="an image is scaled by a factor between these, then cropped or padded"
    )
    brightness: Change = Field(default=0.0, description="most that is added or taken, in the set's deviations")
    contrast: Change = Field(default=0.0, description="most by which differences from the set's mean grow or shrink")
    saturation: Change = Field(default=0.0, description="most by which differences between colours grow or shrink")
    rotation: Change = Field(
        default=0.0,
        # left out where it is 0, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="how likely a window of motion sensors is turned at random, as if the phone lay otherwise",
    )
    degrees: float = Field(
        default=180.0,
        gt=0,
        le=180,
        exclude_if=lambda degrees: degrees == 180,
        description="by how much it is turned at most; 180: by any rotation",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [word.partition("=") for word in value.replace(",", " ").split() if word != "none"]
        if any(not (equals and text) for _, equals, text in pairs):
            raise ValueError(f"expected {_AS_TEXT}")
        return {key: text.split(":") if key == "scale" else text for key, _, text in pairs}

    @model_validator(mode="after")
    def _in_order(self) -> Augmentation:
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale = {self.scale}: the smaller factor comes first")
        return self

    @property
    def is_off(self) -> bool:
        """Whether nothing is changed."""
        return self == Augmentation()

    @property
    def is_of_images(self) -> bool:
        """Whether something is changed that only images have."""
        return self.model_copy(update={"rotation": 0.0, "degrees": 180.0}) != Augmentation()

    def __str__(self) -> str:
        """Write it as the command line takes it."""
        off = Augmentation()
        changed = {name: value for name, value in self if value != getattr(off, name)}
        words = (
            f"{name}={':'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in changed.items()
        )
        return ",".join(words) or "none"


_AS_TEXT = f"none or some of {', '.join(Augmentation.model_fields)}, such as flip=0.5,padding=4,scale=0.5:2"


class TrainingConfig(Strict):
    """How a client trains in a round, and the size of what it learns."""

    classes: int = Field(ge=1, le=10_000)
    feature_dim: int = Field(default=192, ge=1, le=65_536)
    epochs: int = Field(default=1, ge=1, le=10_000)
    batch_size: int = Field(default=64, ge=1, le=65_536)
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0, le=100)
    lr_schedule: Literal["constant", "polynomial"] = Field(
        default="constant",
        description="polynomial: round t of T has the learning rate lr · (1 − (t − 1)/T)^lr_power, each of its steps",
    )
    lr_power: float = Field(default=0.9, gt=0, le=10, description="of the polynomial schedule")
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    augmentation: Augmentation = Field(
        default=Augmentation(), description="of images or windows; as text or by its keys"
    )
    seed: int = Field(default=0, ge=0, lt=2**63)


class ModelSpec(Strict):
    """A network by its name in `models.MODELS`, and its options."""

    name: Name
    options: dict[str, Any] = Field(default_factory=dict)


MAX_CLIENTS = 10**9


class RoundSettings(Strict):
    """How the cohort of a round is selected and when the round closes."""

    rounds: int = Field(default=10, ge=1, le=1_000_000, description="to publish; those that fail do not count")
    clients_per_round: int | None = Field(default=None, ge=1, le=MAX_CLIENTS, description="none: every client")
    sampling: Literal["uniform", "examples"] = Field(
        default="uniform", description="examples: a client is drawn in proportion to how many it has"
    )
    cohort_tags: tuple[Name, ...] = Field(
        default=(), max_length=32, description="draw only from devices in one of these groups; none: from all"
    )
    over_selection: float = Field(default=1.0, ge=1, le=10, description="invite this many times more")
    minimum_clients: int = Field(default=1, ge=1, le=MAX_CLIENTS, description="updates needed at the deadline")
    deadline_s: float | None = Field(default=None, gt=0, description="none: wait for every client")
    interval_s: float = Field(
        default=0.0,
        ge=0,
        le=366 * 86_400,
        # left out where it is 0, so that devices of a version without it go on
        exclude_if=operator.not_,
        description="from the opening of a round to that of the next, at least",
    )
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
        default=8,
        ge=1,
        le=10**9,
        description="updates of earlier rounds before their median refuses others as they arrive",
    )
    max_refused_updates: int | None = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="suspend a client after so many of its updates in a row were refused, quarantined or left out for "
        "what they hold; none: never",
    )
    max_failed_rounds: int = Field(
        default=5, ge=1, le=1_000_000, description="pause the federation after so many failed rounds in a row"
    )

    def keeps_partial_work(self, method_does: bool) -> bool:
        """Whether an update of a client that did not do all of its steps is aggregated; or what the method does."""
        return method_does if self.partial_work == "method" else self.partial_work == "use"


class PublicationSettings(Strict):
    """When a continuous federation publishes a version, and when its devices send their sums again."""

    interval_s: float = Field(
        default=60.0,
        ge=0,
        le=366 * 86_400,
        description="from one published version to the next, at least; before the twelfth a twelfth of it for each "
        "version that there is",
    )
    min_changes: int = Field(
        default=1,
        ge=1,
        le=MAX_CLIENTS,
        description="devices whose sums came, changed or went before a version is published",
    )
    max_wait_s: float = Field(
        default=3600.0, ge=0, le=366 * 86_400, description="a change waits no longer, whatever min_changes says"
    )
    send_after_windows: int = Field(
        default=20,
        ge=1,
        le=10**9,
        description="a device sends its sums again once so many of its training windows came or went since it last did",
    )


class SecureSettings(Strict):
    """Whether the server learns the clients' updates one by one, or their sum alone (`federation.secure_sums`).

    What clients send to be added are whole numbers: `steps` to 1, cut off where a sum of all could leave its range.
    """

    mode: Literal["off", "masked", "clear"] = Field(
        default="off",
        description="masked: the server learns sums alone; clear: the same whole numbers without masks, which a "
        "simulation compares with",
    )
    min_devices: int = Field(default=3, ge=3, le=1 << 14, description="no sum is of fewer")
    colluding_share: float = Field(
        default=0.2, ge=0, le=1 / 3, description="of the devices may work for the server, and the others stay hidden"
    )
    lost_share: float = Field(
        default=0.2, ge=0, le=1 / 3, description="of the devices may be lost in a round, and it still has a sum"
    )
    steps: int = Field(default=1024, ge=1, le=1 << 20, description="whole numbers to 1 of what is added up")
    max_change: float = Field(default=4.0, gt=0, le=1e6, description="a parameter's change is cut off beyond")
    max_value: float = Field(
        default=64.0, gt=0, le=1e6, description="a prototype's or variate's number is cut off beyond"
    )
    max_weight: int = Field(default=4096, ge=1, le=1 << 24, description="a client weighs at most so many examples")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        # left out where there is none, so that devices of a version without it go on
        exclude_if=lambda norm: norm is None,
        description="L2 norm of a client's vector at most, in the whole numbers that it adds (analytic: 2¹⁵ to 1)",
    )
    noise_multiplier: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        exclude_if=operator.not_,
        description="deviation of the noise in the sum, in units of clip_norm; each client adds its share of it",
    )
    stage_s: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="a server waits so long for each of the answers that follow a device's keys; then it is lost",
    )

    @property
    def is_on(self) -> bool:
        """Whether updates are added as whole numbers."""
        return self.mode != "off"


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


class PromotionSettings(Strict):
    """When the name `stable` moves to a newer version by itself, and a rollout's version becomes `released`."""

    min_devices: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="so many devices must have measured the version, and both it and the one that it replaces; none: a "
        "tenth of those that a round asks, but at least two, or the only one",
    )
    margin: float = Field(
        default=0.02,
        ge=0,
        le=1e6,
        description="by so much of the task's metric it may be worse, on average over the devices that measured both; "
        "0.02 of macro-F1 are two points",
    )


class DataStatistics(Strict):
    """Count of samples, and the sum and square sum of each channel, which all clients are normalized with."""

    count: int = Field(ge=0, le=2**53)
    total: tuple[float, ...]
    square: tuple[float, ...]


Normalization = Literal["client", "federated", "pooled", "none"]
Split = Literal["temporal", "random80", "kfold7_3"]


Side = Annotated[int, Field(ge=8, le=1024)]
"""Of an image, in pixels."""


class ImageInput(Strict):
    """Images of one size, to which every file is resampled; `pad` keeps its shape, with grey beside it."""

    kind: Literal["image"] = "image"
    shape: tuple[Literal[1, 3], Side, Side] = Field(description="channels (1: grey, 3: colours), height, width")
    fit: Fit = Field(default="stretch", description="pad: keep an image's shape, with grey without a class beside it")


def image_input(shape: tuple[int, ...], fit: Fit = "stretch") -> ImageInput | None:
    """Describe images (channels, height, width); None for those that devices cannot have."""
    try:
        return ImageInput.model_validate({"shape": shape, "fit": fit})
    except ValidationError:
        return None


class DataSpec(Strict):
    """How a client turns its own samples into training examples; har_pipeline reads `pipeline`."""

    pipeline: dict[str, Any] = Field(default_factory=dict)
    input: ImageInput | None = Field(
        default=None, description="images of this shape; none: windows of motion sensors, which `pipeline` cuts"
    )
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

    labels: tuple[str, ...] = Field(min_length=1, description="the classes; of a number, its name and unit")
    task: dict[str, Any] = Field(
        default={"name": DEFAULT_TASK.name}, description='what is learnt: {"name": "classification", …options}'
    )
    model: ModelSpec
    alternatives: tuple[ModelSpec, ...] = Field(
        default=(), description="other models that a device may choose, if the method mixes architectures"
    )
    method: dict[str, Any] = Field(description='{"name": "fedali", …hyper-parameters}')
    training: TrainingConfig
    rounds: RoundSettings = RoundSettings()
    publication: PublicationSettings = Field(
        default=PublicationSettings(),
        # left out where it is as here, so that devices of a version without it go on
        exclude_if=lambda settings: settings == PublicationSettings(),
        description="of a continuous federation, which has no rounds with a cohort and a deadline",
    )
    secure: SecureSettings = Field(
        default=SecureSettings(),
        # left out where it is as here, so that devices of a version without it go on
        exclude_if=lambda settings: settings == SecureSettings(),
        description="what the server may see of single clients' updates",
    )
    rollout: RolloutSettings = RolloutSettings()
    promotion: PromotionSettings = PromotionSettings()
    data: DataSpec = DataSpec()
    packages: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        exclude_if=operator.not_,
        description='packages whose entries the plan names: {"methods:feddyn": "gaitway-feddyn 0.1"}',
    )

    @model_validator(mode="after")
    def _as_many_labels_as_the_task_has(self) -> Plan:
        learnt = task_of(self.task)
        if len(self.labels) < learnt.min_labels:
            raise ValueError(
                f"labels: {len(self.labels)} came; {learnt.name} learns classes, {learnt.min_labels} at the least"
            )
        if learnt.target is TargetKind.NUMBER and len(self.labels) > 1:
            raise ValueError(
                f"labels: {len(self.labels)} came; {learnt.name} learns one number, and its label is the number's name "
                'and unit, such as "heart rate (beats/min)"'
            )
        return self


def with_packages(plan: Plan) -> Plan:
    """Say in a plan which packages its method, task and models come from, where they are not ours."""
    names = {"methods": [plan.method.get("name")], "tasks": [plan.task.get("name")]}
    names["models"] = [spec.name for spec in (plan.model, *plan.alternatives)]
    found = {
        f"{group}:{name}": plugin.describe()
        for group, known in names.items()
        for name in known
        if (plugin := plugins.provider(group, str(name))) is not None
    }
    return plan.model_copy(update={"packages": found})


def rotation_incompatibility(plan: Plan) -> str | None:
    """Say in words why windows cannot be turned in training, and what to do about it; None where they can."""
    turned = plan.training.augmentation.rotation or plan.method.get("rotations", 0)
    if not turned or plan.data.normalization != "client":
        return None
    return (
        "windows are to be turned at random, in the units in which they were measured, and data.normalization = "
        "'client' gives each client units of its own; use 'federated' or 'none'"
    )


def live_incompatibility(plan: Plan) -> str | None:
    """Say in words what of a plan devices cannot do, and what to do about it; None where they can do all of it."""
    data, task = plan.data, plan.task.get("name")
    if package := plugins.missing(plan.packages):
        return package
    if task not in TASKS:
        return f"task.name = {task!r}: {did_you_mean(str(task), TASKS)}"
    if task_of(plan.task).input_kind == "image" and data.input is None:
        return (
            f"task.name = {task!r} needs images: say their shape in data.input, such as "
            '{"kind": "image", "shape": [3, 96, 128]}'
        )
    if plan.rollout.used and not task_of(plan.task).is_served:
        return (
            f"rollout.mode = {plan.rollout.mode!r}: devices have no use for a model of {task}, so there is nothing to "
            "release to them; use 'off', and begin a federation that has one from this one's model"
        )
    if plan.secure.mode == "clear":
        return (
            "secure.mode = 'clear' hides nothing, it is for simulations that compare with 'masked'; use 'masked', or "
            "'off', and know that the server sees every update"
        )
    if turned := rotation_incompatibility(plan):
        return turned
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
