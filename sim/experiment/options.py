"""The options of a run, each declared once: its type, what it affects, and its help.

`sim.simulate(**options)` and `python -m sim run` take them; the resume check, comparisons, the report and the command
that repeats a run go by what they affect. Bounds and defaults are those of the fields that they set, in
`sim.experiment.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

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
    """What is known of an option; `path` is its field's place in `Experiment`, by default the option's name."""

    affects: Affects
    panel: str
    help: str
    path: tuple[str, ...] = ()

    def value(self, experiment: Any) -> Any:
        """Return what an experiment, or the plan that it has in common with a server, has for it."""
        found: Any = experiment
        for name in self.path:
            found = found[name] if isinstance(found, Mapping) else getattr(found, name)
        return found


class RunOptions(TypedDict, total=False):
    """What a run may be given; what is left out is the preset's or the plan's, or has its field's default."""

    data: Annotated[str, Option("data", DATA, "A data set, or several of recordings joined by +.", ("dataset",))]
    partition: Annotated[
        str | None,
        Option(
            "data", DATA, "How examples are divided among clients; without it as the data have them, where they do."
        ),
    ]
    clients_by: Annotated[ClientsBy, Option("data", DATA, "Make one client of each user, device, place or dataset.")]
    holdout: Annotated[
        str | None,
        Option(
            "data",
            DATA,
            "leave-subjects-out:K, leave-devices-out:K or leave-clients-out:K (or names for K, with * for any letters, "
            "or 1/K: one of K groups of all, which seeds 0 to K - 1 hold out once each): new users, scored at the end "
            "without and with their first 1, 2, 5 and 10 examples of each class, also with the phone upside down and "
            "turned at random, with worse sensors by --set holdout.worse_sensors=true, and on activities alone that "
            "others train by --set holdout.known_classes=true.",
        ),
    ]
    scale: Annotated[
        float,
        Option(
            "data",
            DATA,
            "For a smoke test: that share of the clients (two at least), of each one's examples of each class, "
            "and of the rounds unless --rounds is given.",
        ),
    ]
    validation_share: Annotated[
        float,
        Option(
            "training",
            DATA,
            "Share of each client's training examples, the last of each class, that are not trained on: a round "
            "is chosen by them, so that nothing is chosen by a test set. 0 in the papers' presets.",
        ),
    ]
    labelled_per_class: Annotated[
        int | None,
        Option(
            "training",
            DATA,
            "So many training examples of each class that a client has a label for, drawn by the seed; the others are "
            "not trained on, and nothing is left for validation. By default all are labelled.",
        ),
    ]
    labelled_clients: Annotated[
        float,
        Option(
            "training",
            DATA,
            "Share of the clients that have any labels, drawn by the seed; the others are only tested on.",
        ),
    ]
    split: Annotated[
        Literal["temporal", "random80", "kfold7_3"],
        Option("data", DATA, "temporal (no leak), random80 or kfold7_3 (leak).", ("data", "split")),
    ]
    normalization: Annotated[
        Literal["client", "federated", "pooled", "none"],
        Option("training", DATA, "client, federated, pooled or none: whose statistics.", ("data", "normalization")),
    ]
    init: Annotated[
        Path | str | None,
        Option(
            "training",
            METHOD,
            "Weights to start from, but for the head: a file of `pretrain` or `run`, or the directory of a run, for "
            "its global model (of masked_reconstruction: its encoder); for some models with model.norm=frozen also "
            "torchvision's, of ImageNet. Without it they are drawn from the seed.",
        ),
    ]
    task: Annotated[str, Option("training", METHOD, "What is learnt; its options by --set task.KEY.", ("task", "name"))]
    model: Annotated[
        str,
        Option(
            "training",
            METHOD,
            "A model of the table, or several that the clients take in turn: hart+har_cnn (local, fedproto).",
            ("model", "name"),
        ),
    ]
    method: Annotated[str, Option("training", METHOD, "Name of the method, such as fedavg.", ("method", "name"))]
    baseline: Annotated[
        BaselineKind,
        Option(
            "training",
            METHOD,
            "Instead of training the network, fit random_forest or ridge (scikit-learn) on the features of --model "
            "har_features, in one round: with --method centralized on everybody's windows, with local on each "
            "client's own.",
        ),
    ]
    stragglers: Annotated[
        float,
        Option(
            "training",
            TRAINING,
            "Share of each cohort that does a random part F′ ~ U(0, F) of its steps; dropped, or used if the method's "
            "paper does (rounds.partial_work=drop|use overrides it).",
        ),
    ]
    attack: Annotated[
        AttackKind,
        Option(
            "training",
            TRAINING,
            "What hostile clients send instead of what they trained, or train on (label_flip): noise, sign_flip, "
            "scaling, label_flip, little_is_enough, examples, and of sums class_swap and collusion "
            "(docs/robustness.md); what stands against it are the server's rules, as --set aggregation=median.",
        ),
    ]
    attackers: Annotated[
        float, Option("training", TRAINING, "Share of the clients that are hostile in every round, drawn by the seed.")
    ]
    precision: Annotated[
        UplinkPrecision,
        Option(
            "training",
            TRAINING,
            "Of uploads on the wire: lossless, float16, int8 (with error feedback) or int8_without_feedback.",
        ),
    ]
    secure: Annotated[
        Literal["off", "masked", "clear"],
        Option(
            "training",
            TRAINING,
            "masked: the server learns the sum of a round's updates alone, by secure sums among the clients, whose "
            "whole numbers --set secure.KEY scales; clear: the same whole numbers, added without masks. With either "
            "no rule judges single updates.",
            ("secure", "mode"),
        ),
    ]
    autocast: Annotated[
        NumberFormat,
        Option(
            "training",
            TRAINING,
            "float32, or bfloat16: mixed precision. Convolutions and matrix products are made in bfloat16 where "
            "the hardware is fast at it; parameters, losses, optimizer, ALP's plan and aggregation stay in float32.",
        ),
    ]
    rounds: Annotated[int, Option("training", TRAINING, "Rounds.", ("rounds", "rounds"))]
    epochs: Annotated[int, Option("training", TRAINING, "Local epochs a round.", ("training", "epochs"))]
    batch: Annotated[int, Option("training", TRAINING, "Examples of a batch.", ("training", "batch_size"))]
    lr: Annotated[float, Option("training", TRAINING, "Learning rate.", ("training", "lr"))]
    lr_schedule: Annotated[
        Literal["constant", "polynomial"],
        Option(
            "training",
            TRAINING,
            "constant, or polynomial: round t of T has the learning rate lr · (1 − (t − 1)/T)^0.9; "
            "--set training.lr_power for another power.",
            ("training", "lr_schedule"),
        ),
    ]
    optimizer: Annotated[
        Literal["adam", "sgd"], Option("training", TRAINING, "adam or sgd.", ("training", "optimizer"))
    ]
    momentum: Annotated[float, Option("training", TRAINING, "Of SGD.", ("training", "momentum"))]
    weight_decay: Annotated[
        float,
        Option(
            "training",
            TRAINING,
            "L2 term of the optimizer: so many times each parameter is added to its gradient.",
            ("training", "weight_decay"),
        ),
    ]
    augmentation: Annotated[
        str,
        Option(
            "training",
            TRAINING,
            "Of images, and of masks with them, anew each time they are trained on: flip=0.5 (how likely left and "
            "right change sides), padding=4 (pixels at each side, before a crop), scale=0.5:2 (factor, before a crop), "
            "brightness, contrast, saturation (0.2: by a fifth at most), or some of them: flip=0.5,padding=4. Of "
            "windows rotation=0.5 (how likely one is turned; degrees=60: by 60 at most), sensor_loss=0.3 (how likely "
            "one has no gyroscope).",
            ("training", "augmentation"),
        ),
    ]
    clients_per_round: Annotated[
        int | None, Option("training", TRAINING, "Default: every client.", ("rounds", "clients_per_round"))
    ]
    sampling: Annotated[
        Literal["uniform", "examples"],
        Option(
            "training",
            TRAINING,
            "uniform, or examples: in proportion to them; let clients weigh alike then: --set weighting=uniform.",
            ("rounds", "sampling"),
        ),
    ]
    seed: Annotated[int, Option("training", TRAINING, "One seed repeats a run.", ("training", "seed"))]
    eval_every: Annotated[int, Option("training", RUNNING, "Score the clients every so many rounds.")]
    eval_last: Annotated[int, Option("training", RUNNING, "Also score the clients in each of the last so many rounds.")]
    generalization_examples: Annotated[
        int | None, Option("training", RUNNING, "Examples that generalization is measured on; by default all.")
    ]
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
    ]
    engine: Annotated[
        EngineKind,
        Option(
            "environment",
            RUNNING,
            "auto, serial (one client after the other), processes (one a core, on the CPU), stacked (many "
            "clients as one program, for a GPU) or ray (on the cluster at RAY_ADDRESS). The numbers are the same.",
        ),
    ]
    workers: Annotated[int | None, Option("environment", RUNNING, "Processes; by default one a core.")]
    chunk: Annotated[
        int | None,
        Option(
            "environment",
            RUNNING,
            "Clients stacked at a time; by default as many as a GPU holds, on a CPU 8. Processes stack them "
            "by themselves under --engine auto, where the steps are small.",
        ),
    ]
    compile: Annotated[
        bool,
        Option(
            "environment",
            RUNNING,
            "Compile the training step of stacked clients: minutes at first for each network and size of chunk, "
            "then faster steps (a CUDA graph on CUDA). Where the compiler is missing or fails, the run goes on "
            "without it and says so.",
        ),
    ]
    new_users: Annotated[
        bool,
        Option(
            "environment",
            RUNNING,
            "Score the users whom --holdout leaves out: each is trained several times, which may take as long as the "
            "rounds. The same command adds them where they were left out.",
        ),
    ]
    client_store: Annotated[
        ClientStoreKind,
        Option(
            "environment",
            RUNNING,
            "Where client models are stored: auto, memory, disk (an unlinked temporary file that the kernel pages; "
            "memory stays constant; the same numbers) or none: a client's model ends with its round, so there are the "
            "server's scores only. For methods whose clients get everything anew, as in cross-device learning.",
        ),
    ]
    device: Annotated[str, Option("environment", RUNNING, "cpu or cuda.")]
    threads: Annotated[int, Option("environment", RUNNING, "Torch's threads.")]
    set: list[str]


def _of_the_table(name: str, annotation: Any) -> Option:
    option: Option = annotation.__metadata__[0]
    return option if option.path else Option(option.affects, option.panel, option.help, (name,))


OPTIONS: Mapping[str, Option] = {
    name: _of_the_table(name, annotation)
    for name, annotation in get_type_hints(RunOptions, include_extras=True).items()
    if hasattr(annotation, "__metadata__")
}
"""Every option but `set`, which holds assignments of its own, by its name."""

PLAN_OPTIONS: Mapping[str, Option] = {name: option for name, option in OPTIONS.items() if len(option.path) > 1}
"""Options whose fields are the plan's."""

ENVIRONMENT = frozenset(name for name, option in OPTIONS.items() if option.affects == "environment")
"""Options that may change when a run is resumed, and that do not tell runs apart."""


def option_words(name: str, value: Any) -> list[str]:
    """Write one option as it is given on the command line."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]
