"""What one simulated run is: the plan of its federation, and what only a simulation has.

`config.json` holds it. An option of `python -m sim run` is declared once: beside its field here, or, where the field is
the plan's, in `PLAN_OPTIONS`. The command line, the resume check, comparisons, the report and the command that repeats
a run are derived from `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from federation.plan import DataStatistics, ModelSpec, Plan, image_input, with_packages
from federation.tasks import TASKS
from gaitway.tasks import DEFAULT_TASK
from models.registry import starting_from_published
from sim.data.federated_data import FederatedData
from sim.data.holdout import Holdout
from sim.networks.initialization import Initialization

Affects = Literal["data", "training", "measurement", "environment"]
"""data: which examples there are, and which are tested on; training: what is computed with them; measurement: what is
recorded beside it; environment: where and how fast it is computed, up to float order."""
ClientStoreKind = Literal["auto", "memory", "disk", "none"]
"""Where client models are stored between rounds; none: a client's ends with its round."""
UplinkPrecision = Literal["lossless", "float16", "int8", "int8_without_feedback"]
"""As devices send; the last only shows what the error feedback is worth."""

PANELS = ("Data", "Model and method", "Training", "Running")
_DATA, _METHOD, _TRAINING, _RUNNING = PANELS


@dataclass(frozen=True)
class Option:
    """An option of the command line; `path` is its field's place in `Experiment`."""

    affects: Affects
    panel: str
    help: str
    path: tuple[str, ...] = ()

    @property
    def field(self) -> FieldInfo:
        """The field that it sets; a text for the name of a method, whose fields differ."""
        model: Any = Experiment
        for name in self.path[:-1]:
            model = model.model_fields[name].annotation
        return model.model_fields[self.path[-1]] if hasattr(model, "model_fields") else FieldInfo(annotation=str)

    def value(self, experiment: Experiment) -> Any:
        """Return what an experiment has for it."""
        found: Any = experiment
        for name in self.path:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        return found


class Experiment(Plan):
    """Everything that the numbers of a run depend on (but for the environment, only up to float order)."""

    schema_version: Literal[2] = Field(default=2, alias="schema")
    dataset: Annotated[str, Option("data", _DATA, "A data set, or several of recordings joined by +.")] = "synthetic"
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    partition: Annotated[
        dict[str, Any] | None,
        Option(
            "data", _DATA, "How examples are divided among clients; without it as the data have them, where they do."
        ),
    ] = None
    clients_by: Annotated[
        Literal["client", "dataset", "user", "device", "place"],
        Option("data", _DATA, "Make one client of each user, device, place or dataset."),
    ] = "client"
    holdout: Annotated[
        Holdout | None,
        Option(
            "data",
            _DATA,
            "leave-subjects-out:K, leave-devices-out:K or leave-clients-out:K (or names for K): new users, scored "
            "at the end without and with 5 and 10 labelled examples a class.",
        ),
    ] = None
    scale: Annotated[
        float,
        Option(
            "data",
            _DATA,
            "For a smoke test: that share of the clients (two at least), of each one's examples of each class, "
            "and of the rounds unless --rounds is given.",
        ),
    ] = Field(default=1.0, gt=0, le=1)
    validation_share: Annotated[
        float,
        Option(
            "training",
            _DATA,
            "Share of each client's training examples, the last of each class, that are not trained on: a round "
            "is chosen by them, so that nothing is chosen by a test set. 0 in the papers' presets.",
        ),
    ] = Field(default=0.1, ge=0, le=0.5)
    labelled_per_class: Annotated[
        int | None,
        Option(
            "training",
            _DATA,
            "So many training examples of each class that a client has a label for, drawn by the seed; the others are "
            "not trained on, and nothing is left for validation. By default all are labelled.",
        ),
    ] = Field(default=None, ge=1)
    labelled_clients: Annotated[
        float,
        Option(
            "training",
            _DATA,
            "Share of the clients that have any labels, drawn by the seed; the others are only tested on.",
        ),
    ] = Field(default=1.0, gt=0, le=1)
    init: Annotated[
        Initialization | None,
        Option(
            "training",
            _METHOD,
            "Weights to start from, but for the head: a file of `pretrain` or `run`, or the directory of a run, for "
            "its global model (of masked_reconstruction: its encoder); for "
            f"{', '.join(starting_from_published())} with model.norm=frozen also torchvision's, of ImageNet. "
            "Without it they are drawn from the seed.",
        ),
    ] = None
    stragglers: Annotated[
        float,
        Option(
            "training",
            _TRAINING,
            "Share of each cohort that does a random part F′ ~ U(0, F) of its steps; dropped, or used if the method's "
            "paper does (rounds.partial_work=drop|use overrides it).",
        ),
    ] = Field(default=0.0, ge=0, le=1)
    precision: Annotated[
        UplinkPrecision,
        Option(
            "training",
            _TRAINING,
            "Of uploads on the wire: lossless, float16, int8 (with error feedback) or int8_without_feedback.",
        ),
    ] = "lossless"
    autocast: Annotated[
        Literal["float32", "bfloat16"],
        Option(
            "training",
            _TRAINING,
            "float32, or bfloat16: mixed precision. Convolutions and matrix products are made in bfloat16 where "
            "the hardware is fast at it; parameters, losses, optimizer, ALP's plan and aggregation stay in float32.",
        ),
    ] = "float32"
    eval_every: Annotated[int, Option("training", _RUNNING, "Score the clients every so many rounds.")] = Field(
        default=1, ge=1
    )
    generalization_examples: Annotated[
        int | None, Option("training", _RUNNING, "Examples that generalization is measured on; by default all.")
    ] = Field(default=None, ge=1)
    gradient_dissimilarity: Annotated[
        bool,
        Option(
            "measurement",
            _RUNNING,
            "Before each round compare the gradients of its clients at the server's model, (1/K) Σ‖∇L_k − ∇L‖²; "
            "costs about one epoch of one process. For methods with a global model.",
        ),
    ] = False
    eval_batch: int = Field(default=256, ge=1)
    engine: Annotated[
        Literal["auto", "serial", "processes", "stacked", "ray"],
        Option(
            "environment",
            _RUNNING,
            "auto, serial (one client after the other), processes (one a core, on the CPU), stacked (many "
            "clients as one program, for a GPU) or ray (on the cluster at RAY_ADDRESS). The numbers are the same.",
        ),
    ] = "auto"
    workers: Annotated[int | None, Option("environment", _RUNNING, "Processes; by default one a core.")] = Field(
        default=None, ge=1, le=1024
    )
    chunk: Annotated[
        int | None,
        Option(
            "environment",
            _RUNNING,
            "Clients stacked at a time; by default as many as a GPU holds, on a CPU 8. Processes stack them "
            "by themselves under --engine auto, where the steps are small.",
        ),
    ] = Field(default=None, ge=1)
    compile: Annotated[
        bool,
        Option(
            "environment",
            _RUNNING,
            "Compile the training step of stacked clients: minutes at first for each network and size of chunk, "
            "then faster steps (a CUDA graph on CUDA). Where the compiler is missing or fails, the run goes on "
            "without it and says so.",
        ),
    ] = False
    client_store: Annotated[
        ClientStoreKind,
        Option(
            "environment",
            _RUNNING,
            "Where client models are stored: auto, memory, disk (an unlinked temporary file that the kernel pages; "
            "memory stays constant; the same numbers) or none: a client's model ends with its round, so there are the "
            "server's scores only. For methods whose clients get everything anew, as in cross-device learning.",
        ),
    ] = "auto"
    device: Annotated[str, Option("environment", _RUNNING, "cpu or cuda.")] = "cpu"
    threads: Annotated[int, Option("environment", _RUNNING, "Torch's threads.")] = Field(default=1, ge=1)
    preset: str | None = None

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """Every network of the federation."""
        return (self.model, *self.alternatives)

    def plan_for(self, data: FederatedData) -> Plan:
        """Return the plan that a server and its devices carry out: with images' shape, and federated statistics."""
        plan = with_packages(Plan(**{name: getattr(self, name) for name in Plan.model_fields}))
        found: dict[str, Any] = {}
        if self.data.normalization == "federated" and self.data.statistics is None:
            found["statistics"] = DataStatistics.model_validate(next(iter(data.statistics.values())).to_json())
        if self.data.input is None and data.image_shape is not None:
            found["input"] = image_input(data.image_shape, data.fit)
        return plan.model_copy(update={"data": self.data.model_copy(update=found)}) if found else plan

    def by_section(self) -> dict[str, Any]:
        """Return all settings, the plan's `data` apart: pipeline, split, normalization, …."""
        values = self.model_dump()
        return {**values.pop("data"), **values}


PLAN_OPTIONS: Mapping[str, Option] = {
    "split": Option("data", _DATA, "temporal (no leak), random80 or kfold7_3 (leak).", ("data", "split")),
    "normalization": Option(
        "training", _DATA, "client, federated, pooled or none: whose statistics.", ("data", "normalization")
    ),
    "task": Option(
        "training",
        _METHOD,
        f"What is learnt: {', '.join(TASKS)}; its options by --set task.KEY.",
        ("task", "name"),
    ),
    "model": Option(
        "training",
        _METHOD,
        "A model of the table, or several that the clients take in turn: hart+har_cnn (local, fedproto).",
        ("model", "name"),
    ),
    "method": Option("training", _METHOD, "Name of the method, such as fedavg.", ("method", "name")),
    "rounds": Option("training", _TRAINING, "Rounds.", ("rounds", "rounds")),
    "epochs": Option("training", _TRAINING, "Local epochs a round.", ("training", "epochs")),
    "batch": Option("training", _TRAINING, "Examples of a batch.", ("training", "batch_size")),
    "lr": Option("training", _TRAINING, "Learning rate.", ("training", "lr")),
    "lr_schedule": Option(
        "training",
        _TRAINING,
        "constant, or polynomial: round t of T has the learning rate lr · (1 − (t − 1)/T)^0.9; "
        "--set training.lr_power for another power.",
        ("training", "lr_schedule"),
    ),
    "optimizer": Option("training", _TRAINING, "adam or sgd.", ("training", "optimizer")),
    "momentum": Option("training", _TRAINING, "Of SGD.", ("training", "momentum")),
    "weight_decay": Option(
        "training",
        _TRAINING,
        "L2 term of the optimizer: so many times each parameter is added to its gradient.",
        ("training", "weight_decay"),
    ),
    "augmentation": Option(
        "training",
        _TRAINING,
        "Of images, and of masks with them, anew each time they are trained on: flip=0.5 (how likely left and right "
        "change sides), padding=4 (pixels at each side, before a crop), scale=0.5:2 (factor, before a crop), "
        "brightness, contrast, saturation (0.2: by a fifth at most), or some of them: flip=0.5,padding=4.",
        ("training", "augmentation"),
    ),
    "clients_per_round": Option("training", _TRAINING, "Default: every client.", ("rounds", "clients_per_round")),
    "sampling": Option("training", _TRAINING, "uniform, or examples: in proportion to them.", ("rounds", "sampling")),
    "seed": Option("training", _TRAINING, "One seed repeats a run.", ("training", "seed")),
}
"""Options whose fields are the plan's."""


def _own_options() -> Iterator[tuple[str, Option]]:
    """Yield the options of what only a simulation has; `--data` alone is not named as its field."""
    for name, field in Experiment.model_fields.items():
        for found in field.metadata:
            if isinstance(found, Option):
                yield "data" if name == "dataset" else name, Option(found.affects, found.panel, found.help, (name,))


_ALL = {**dict(_own_options()), **PLAN_OPTIONS}
OPTIONS: Mapping[str, Option] = {
    name: option for panel in PANELS for name, option in _ALL.items() if option.panel == panel
}
"""Every option of `sim run` that an experiment is described by, under its name on the command line."""


def default_of(option: Option) -> Any:
    """Return an option's default; None where its field has none."""
    if option.path == ("method", "name"):
        return "fedavg"
    if option.path == ("model", "name"):
        return "har_cnn"
    if option.path == ("task", "name"):
        return DEFAULT_TASK.name
    return None if option.field.is_required() else option.field.get_default(call_default_factory=True)


DEFAULTS: dict[str, Any] = {**{name: default_of(option) for name, option in OPTIONS.items()}, "set": []}
"""What an option is where neither a preset, nor a plan, nor the command line gives it."""

ENVIRONMENT = frozenset(name for name, option in OPTIONS.items() if option.affects == "environment")
"""Options that may change when a run is resumed, and that do not tell runs apart."""
