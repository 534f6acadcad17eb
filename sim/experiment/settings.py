"""One simulated run's settings: its federation's plan, and the simulation's own settings, each with its option.

`config.json` holds an `Experiment`. `sim.simulate(**options)` and `python -m sim run` take `OPTIONS`; the resume check,
comparisons, the report and the command that repeats a run go by what they affect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from federation.plan import ModelSpec, Plan
from gaitway.tasks import DEFAULT_TASK
from sim.experiment.initialization import Initialization
from sim.experiment.options import (
    DATA,
    METHOD,
    PLAN_OPTIONS,
    RUNNING,
    TRAINING,
    AnalysesKind,
    AttackKind,
    BaselineKind,
    ClientsBy,
    ClientStoreKind,
    EngineKind,
    Holdout,
    NumberFormat,
    Option,
    UplinkPrecision,
)


class Experiment(Plan):
    """Everything that the numbers of a run depend on (but for the environment, only up to float order)."""

    schema_version: Literal[2] = Field(default=2, alias="schema")
    dataset: Annotated[str, Option("data", DATA, "A data set, or several of recordings joined by +.", name="data")] = (
        "synthetic"
    )
    dataset_options: dict[str, Any] = Field(default_factory=dict)
    partition: Annotated[
        dict[str, Any] | None,
        Option("data", DATA, "How examples are divided among clients (default: by the data's own clients, if any)."),
    ] = None
    clients_by: Annotated[
        ClientsBy, Option("data", DATA, "Make one client of each user, device, place or dataset.")
    ] = "client"
    holdout: Annotated[
        Holdout | None,
        Option(
            "data",
            DATA,
            "leave-subjects-out:K, leave-devices-out:K or leave-clients-out:K (or names for K, with * for any letters, "
            "or 1/K: one of K groups of all, which seeds 0 to K - 1 hold out once each): new users, scored at the end "
            "without and with their first 1, 2, 5 and 10 examples of each class, also with the phone upside down and "
            "turned at random, with worse sensors by --set holdout.worse_sensors=true, and on activities alone that "
            "others train by --set holdout.known_classes=true.",
        ),
    ] = None
    scale: Annotated[
        float,
        Option(
            "data",
            DATA,
            "For a smoke test: this share of the clients (at least two), of each one's examples of each class, "
            "and of the rounds unless --rounds is given.",
        ),
    ] = Field(default=1.0, gt=0, le=1)
    validation_share: Annotated[
        float,
        Option(
            "training",
            DATA,
            "Share of each client's training examples, the last of each class, that are not trained on: a round "
            "is chosen by them, so that nothing is chosen by a test set. 0 in the papers' presets.",
        ),
    ] = Field(default=0.1, ge=0, le=0.5)
    labelled_per_class: Annotated[
        int | None,
        Option(
            "training",
            DATA,
            "Number of labelled training examples per class and client, drawn by the seed; the others are "
            "not trained on, and nothing is left for validation. By default all are labelled.",
        ),
    ] = Field(default=None, ge=1)
    labelled_clients: Annotated[
        float,
        Option(
            "training",
            DATA,
            "Share of the clients that have any labels, drawn by the seed; the others are only tested on.",
        ),
    ] = Field(default=1.0, gt=0, le=1)
    init: Annotated[
        Initialization | None,
        Option(
            "training",
            METHOD,
            "Weights to start from, but for the head: a file of `pretrain` or `run`, or the directory of a run, for "
            "its global model (of masked_reconstruction: its encoder); for some models with model.norm=frozen also "
            "torchvision's, of ImageNet. Without it they are drawn from the seed.",
            given_as=Path,
        ),
    ] = None
    baseline: Annotated[
        BaselineKind,
        Option(
            "training",
            METHOD,
            "Instead of training the network, fit random_forest or ridge (scikit-learn) on the features of --model "
            "har_features, in one round: with --method centralized on everybody's windows, with local on each "
            "client's own.",
        ),
    ] = "none"
    stragglers: Annotated[
        float,
        Option(
            "training",
            TRAINING,
            "Share of each cohort that does a random part F′ ~ U(0, F) of its steps; dropped, or used if the method's "
            "paper does (rounds.partial_work=drop|use overrides it).",
        ),
    ] = Field(default=0.0, ge=0, le=1)
    attack: Annotated[
        AttackKind,
        Option(
            "training",
            TRAINING,
            "What hostile clients send instead of what they trained, or train on (label_flip): noise, sign_flip, "
            "scaling, label_flip, little_is_enough, examples, and of sums class_swap and collusion "
            "(docs/robustness.md); what stands against it are the server's rules, as --set aggregation=median.",
        ),
    ] = "none"
    attackers: Annotated[
        float, Option("training", TRAINING, "Share of the clients that are hostile in every round, drawn by the seed.")
    ] = Field(default=0.2, ge=0, lt=1)
    precision: Annotated[
        UplinkPrecision,
        Option(
            "training",
            TRAINING,
            "Of uploads on the wire: lossless, float16, int8 (with error feedback) or int8_without_feedback.",
        ),
    ] = "lossless"
    autocast: Annotated[
        NumberFormat,
        Option(
            "training",
            TRAINING,
            "float32, or bfloat16: mixed precision. Convolutions and matrix products are made in bfloat16 where "
            "the hardware is fast at it; parameters, losses, optimizer, ALP's plan and aggregation stay in float32.",
        ),
    ] = "float32"
    eval_every: Annotated[int, Option("training", RUNNING, "Score the clients every this many rounds.")] = Field(
        default=1, ge=1
    )
    eval_last: Annotated[
        int, Option("training", RUNNING, "Also score the clients in each of the last rounds, this many.")
    ] = Field(default=1, ge=1)
    generalization_examples: Annotated[
        int | None, Option("training", RUNNING, "Number of examples for measuring generalization (default: all).")
    ] = Field(default=None, ge=1)
    analyses: Annotated[
        AnalysesKind,
        Option(
            "measurement",
            RUNNING,
            "What else each evaluated round measures, for `analyse`: none, or michieli: training loss and gradient "
            "dissimilarity (1/K) Σ‖∇L_k − ∇L‖² of the server's model over all clients (100 of 1,000 or more), and the "
            "aggregate margin. It keeps each such round's model, but of segmentation, and takes about as long as an "
            "epoch of these clients in one process.",
        ),
    ] = "none"
    new_users: Annotated[
        bool,
        Option(
            "environment",
            RUNNING,
            "Score the users whom --holdout leaves out: each is trained several times, which may take as long as the "
            "rounds. The same command adds them where they were left out.",
        ),
    ] = True
    eval_batch: int = Field(default=256, ge=1)
    engine: Annotated[
        EngineKind,
        Option(
            "environment",
            RUNNING,
            "auto, serial (one client after the other), processes (one per core, on the CPU), stacked (many "
            "clients as one program, for a GPU) or ray (on the cluster at RAY_ADDRESS). The numbers are the same.",
        ),
    ] = "auto"
    workers: Annotated[int | None, Option("environment", RUNNING, "Processes (default: one per core).")] = Field(
        default=None, ge=1, le=1024
    )
    chunk: Annotated[
        int | None,
        Option(
            "environment",
            RUNNING,
            "Clients stacked at a time (default: as many as fit on a GPU, 8 on a CPU). Processes stack them "
            "by themselves under --engine auto, where the steps are small.",
        ),
    ] = Field(default=None, ge=1)
    compile: Annotated[
        bool,
        Option(
            "environment",
            RUNNING,
            "Compile the training step of stacked clients: minutes at first for each network and size of chunk, "
            "then faster steps (a CUDA graph on CUDA). Where the compiler is missing or fails, the run goes on "
            "without it and says so.",
        ),
    ] = False
    client_store: Annotated[
        ClientStoreKind,
        Option(
            "environment",
            RUNNING,
            "Where client models are stored: auto, memory, disk (an unlinked temporary file that the kernel pages; "
            "memory stays constant; the same numbers) or none: a client's model ends with its round, so there are the "
            "server's scores only. For methods whose clients get everything anew, as in cross-device learning.",
        ),
    ] = "auto"
    device: Annotated[str, Option("environment", RUNNING, "cpu or cuda.")] = "cpu"
    threads: Annotated[int, Option("environment", RUNNING, "Torch's threads.")] = Field(default=1, ge=1)
    preset: str | None = None

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """Every network of the federation."""
        return (self.model, *self.alternatives)

    def by_section(self) -> dict[str, Any]:
        """Return all settings, the plan's `data` apart: pipeline, split, normalization, …."""
        values = self.model_dump()
        return {**values.pop("data"), **values}


def _own_options() -> Mapping[str, Option]:
    found = {}
    for field, info in Experiment.model_fields.items():
        for option in info.metadata:
            if isinstance(option, Option):
                found[option.name or field] = replace(option, path=(field,))
    return found


_OWN = _own_options()
OPTIONS: Mapping[str, Option] = {
    **{name: option for name, option in {**_OWN, **PLAN_OPTIONS}.items() if option.panel == DATA},
    **PLAN_OPTIONS,
    **_OWN,
}
"""Every option but `set`, which holds assignments of its own, by its name, in the order of the help."""

ENVIRONMENT = frozenset(name for name, option in OPTIONS.items() if option.affects == "environment")
"""Options that may change when a run is resumed, and that do not tell runs apart."""


def field_of(option: Option) -> FieldInfo:
    """Return the field that an option sets; a text for the name of a method or a task, whose fields differ."""
    model: Any = Experiment
    for name in option.path[:-1]:
        model = model.model_fields[name].annotation
    return model.model_fields[option.path[-1]] if hasattr(model, "model_fields") else FieldInfo(annotation=str)


def default_of(option: Option) -> Any:
    """Return an option's default; None where its field has none."""
    names = {"method": "fedavg", "model": "har_cnn", "task": DEFAULT_TASK.name}
    if option.path[1:] == ("name",):
        return names[option.path[0]]
    field = field_of(option)
    return None if field.is_required() else field.get_default(call_default_factory=True)


DEFAULTS: dict[str, Any] = {**{name: default_of(option) for name, option in OPTIONS.items()}, "set": []}
"""What an option is where neither a preset, nor a plan, nor the command line gives it."""
