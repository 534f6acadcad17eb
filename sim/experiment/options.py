"""The options of a run, each declared once: its type, what it affects, and its help.

`sim.simulate(**options)` and `python -m sim run` take them; the resume check, comparisons, the report and the command
that repeats a run go by what they affect. Bounds and defaults are those of the fields that they set, in
`sim.experiment.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from federation.plan import Strict
from gaitway.errors import first_problem
from sim.errors import SettingsError

KINDS = ("leave-subjects-out", "leave-devices-out", "leave-clients-out")
FOLD = r"^1/[1-9][0-9]{0,3}$"


class Holdout(Strict):
    """Whom to hold out: so many, drawn by the seed; the named ones; or 1/K, one of K groups of all, by the seed.

    In a name `*` stands for any letters: `ucihar-*` are all subjects of one set of several.

    The groups are the same whatever the seed: seeds 0 to K − 1 hold everybody out once, as in a cross-validation.
    """

    kind: Literal["leave-subjects-out", "leave-devices-out", "leave-clients-out"]
    out: int | Annotated[str, Field(pattern=FOLD)] | tuple[str, ...] = Field(
        description="how many, 1/K, or their names"
    )
    epochs: int = Field(default=20, ge=1, description="epochs of a new client's personalization")
    known_classes: bool = Field(
        default=False, description="score them only on examples of classes that some member's training examples have"
    )
    worse_sensors: bool = Field(
        default=False, description="score them with worse sensors, too (`sim.data.other_phones`)"
    )


def holdout(text: str | None, options: dict[str, Any]) -> Holdout | None:
    """Read `KIND:K` or `KIND:NAME,NAME…`; raises SettingsError."""
    if text is None:
        if options:
            raise SettingsError(f"--set holdout.{next(iter(options))} needs --holdout")
        return None
    kind, colon, out = text.partition(":")
    if kind not in KINDS or not (colon and out):
        raise SettingsError(f"--holdout {text!r}: expected {'|'.join(KINDS)}, a colon, and a number, 1/K, or names")
    # one subject called 3 is "3,"
    whom = int(out) if out.isdigit() else out if re.match(FOLD, out) else tuple(filter(None, out.split(",")))
    try:
        return Holdout.model_validate({"kind": kind, "out": whom, **options})
    except ValidationError as error:
        raise SettingsError(f"holdout.{first_problem(error, input_shown=True, model=Holdout)}") from error


Affects = Literal["data", "training", "measurement", "environment"]
"""data: which examples there are, and which are tested on; training: what is computed with them; measurement: what is
recorded beside it; environment: where and how fast it is computed, up to float order."""
ClientsBy = Literal["client", "dataset", "user", "device", "place"]
ClientStoreKind = Literal["auto", "memory", "disk", "none"]
"""Where client models are stored between rounds; none: a client's ends with its round."""
AnalysesKind = Literal["none", "michieli"]
BaselineKind = Literal["none", "random_forest", "ridge"]
AttackKind = Literal[
    "none", "noise", "sign_flip", "scaling", "label_flip", "little_is_enough", "examples", "class_swap", "collusion"
]
"""After none: four for networks and for sums, two for networks, two for sums."""
EngineKind = Literal["auto", "serial", "processes", "stacked", "ray"]
NumberFormat = Literal["float32", "bfloat16"]
UplinkPrecision = Literal["lossless", "float16", "int8", "int8_without_feedback"]
"""As devices send; the last only shows what the error feedback is worth."""

DATA, METHOD, TRAINING, RUNNING = "Data", "Model and method", "Training", "Running"
"""Under which title an option stands in the help."""


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its field's type, bounds and default.

    `path` is the field's place in `Experiment`; `name` is the option's where it isn't the field's, and `given_as` the
    type of what is given where that isn't the field's.
    """

    affects: Affects
    panel: str
    help: str
    path: tuple[str, ...] = ()
    name: str = ""
    given_as: type | None = None

    def value(self, experiment: Any) -> Any:
        """Return what an experiment, or the plan that it has in common with a server, has for it."""
        found: Any = experiment
        for name in self.path:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        return found


PLAN_OPTIONS: Mapping[str, Option] = {
    "split": Option("data", DATA, "temporal (no leak), random80 or kfold7_3 (leak).", ("data", "split")),
    "normalization": Option(
        "training", DATA, "client, federated, pooled or none: whose statistics.", ("data", "normalization")
    ),
    "task": Option("training", METHOD, "The task; set its options with --set task.KEY.", ("task", "name")),
    "model": Option(
        "training",
        METHOD,
        "A model of the table, or several that the clients take in turn: hart+har_cnn (local, fedproto).",
        ("model", "name"),
    ),
    "method": Option("training", METHOD, "Name of the method, such as fedavg.", ("method", "name")),
    "secure": Option(
        "training",
        TRAINING,
        "masked: the server learns only the sum of a round's updates, by secure sums among the clients, whose "
        "whole numbers --set secure.KEY scales; clear: the same whole numbers, added without masks. With either "
        "no rule judges single updates.",
        ("secure", "mode"),
    ),
    "rounds": Option("training", TRAINING, "Rounds.", ("rounds", "rounds")),
    "epochs": Option("training", TRAINING, "Local epochs per round.", ("training", "epochs")),
    "batch": Option("training", TRAINING, "Examples per batch.", ("training", "batch_size")),
    "lr": Option("training", TRAINING, "Learning rate.", ("training", "lr")),
    "lr_schedule": Option(
        "training",
        TRAINING,
        "constant, or polynomial: round t of T has the learning rate lr · (1 − (t − 1)/T)^0.9; "
        "--set training.lr_power for another power.",
        ("training", "lr_schedule"),
    ),
    "optimizer": Option("training", TRAINING, "adam or sgd.", ("training", "optimizer")),
    "momentum": Option("training", TRAINING, "Of SGD.", ("training", "momentum")),
    "weight_decay": Option(
        "training",
        TRAINING,
        "L2 penalty: this factor times each parameter is added to its gradient.",
        ("training", "weight_decay"),
    ),
    "augmentation": Option(
        "training",
        TRAINING,
        "Of images, and of masks with them, anew each time they are trained on: flip=0.5 (how likely left and "
        "right change sides), padding=4 (pixels at each side, before a crop), scale=0.5:2 (factor, before a crop), "
        "brightness, contrast, saturation (0.2: by a fifth at most), or some of them: flip=0.5,padding=4. Of "
        "windows rotation=0.5 (how likely one is turned; degrees=60: by 60 at most), sensor_loss=0.3 (how likely "
        "one has no gyroscope).",
        ("training", "augmentation"),
    ),
    "clients_per_round": Option("training", TRAINING, "Default: every client.", ("rounds", "clients_per_round")),
    "sampling": Option(
        "training",
        TRAINING,
        "uniform, or examples: in proportion to them; then use equal weights: --set weighting=uniform.",
        ("rounds", "sampling"),
    ),
    "seed": Option("training", TRAINING, "One seed repeats a run.", ("training", "seed")),
}
"""Options whose fields are the plan's."""


def option_words(name: str, value: Any) -> list[str]:
    """Write one option as it is given on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]
