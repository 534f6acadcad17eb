"""Y. Tan et al.: FedProto, AAAI 2022, arXiv 2105.00243: tables 1 to 4, n-way k-shot tasks among 20 clients.

SGD 0.01 with momentum 0.5, batches of 8, one local epoch, about k = 100 examples a class; 40 test examples a class, as
in the authors' code of MNIST. Rounds are those after which table 1 says that a method has converged. Table 1 has one
spread of n for each data set; tables 2 to 4 have a second one, `tan2022-mnist-3-stdev-3` and so on.
Figure 3 is a sweep over `partition.shots`, figure 4 the table `experiments/tan_lambda.toml`.
FedPer and FedRep keep both dense layers of the small CNNs: `head_layers=2` leaves the convolutions as their base, 5,280
parameters on MNIST and 5,120 on FEMNIST, by 20 clients the 106 k and 102 k of table 1 (21,330 with one layer: 427 k).
ResNet18 has one dense layer, 225 million parameters under it.
Differs from the paper: FEMNIST is EMNIST's letters, not LEAF's writers; ResNet18 starts from random weights unless
`--init` gives ImageNet's (then with `--set model.norm=frozen`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.presets.preset import Options, Preset

CLIENTS = 20
_DEPARTURES = (
    "a score is the mean of the clients' accuracies, each on its own test images; the authors' evaluation never sets "
    "its counters back: a client's accuracy is a running mean over the clients before it, and over the head's and the "
    "prototypes' answers together",
    "fedproto: classes are told by the nearest prototype of the client's own classes, as in the authors' code; eq. 4 "
    "says of all classes",
    "fedproto: prototypes weigh by examples, eq. 6 without its printed factor 1/|N_j|; the authors' code takes the "
    "plain mean (weighting=uniform)",
    "fedproto: a client's prototypes are measured after training; the authors' code averages features while they are "
    "still trained",
    "batches of 8, as the paper says, the last one short; the authors' code has 4 by default, and drops the last",
    "n and k are drawn from normal distributions, as the text says; the authors' code draws them evenly from ± stdev, "
    "and n from 2 on, so that no client has a single class",
    "k has the spread of n, as in the authors' code; the paper doesn't say",
    "fedproto: λ multiplies the squared error's mean over the features, as in the authors' code, for which λ is "
    "reported; the appendix multiplies it with the undivided ‖·‖² (distance=squared_sum)",
    "rounds to convergence: the paper doesn't define them; in our tables (`convergence_round`) it is the first "
    "evaluated round whose mean accuracy is within half a point of the run's best",
    "fedrep: one epoch for the head, then one for the base, at one rate; the paper does not say",
)
_OF_DATA = {
    "mnist": (),
    "femnist": (
        "letters are EMNIST's, not LEAF's writers",
        "40 test images a class, as in the authors' code of MNIST; of FEMNIST it has 15 by default",
    ),
    "cifar10": (
        "ResNet18 has GroupNorm and random weights unless --init gives ImageNet's; the authors start from those, but "
        "for the first and the last layer",
        "110 rounds of one epoch, as table 1 and the text say; the authors' script has 30 rounds of 8 epochs",
        "40 test images a class, as in the authors' code of MNIST; of CIFAR-10 it has 15 by default",
    ),
}
_MIXED = "clients take the networks in turn; in the authors' code the first third has the first one, and so on"
_COMPLETE = {"mnist": 2, "femnist": 3, "cifar10": 4}
"""The appendix's table of a data set, which has both spreads of n."""
WAYS = (3, 4, 5)
_TRAINING = {"epochs": 1, "batch": 8, "lr": 0.01, "optimizer": "sgd", "momentum": 0.5, "method": "fedproto"}


class Setting(NamedTuple):
    """One data set's part of table 1; `wider` is the second spread of n, of tables 2 to 4."""

    model: str
    stdev: int
    wider: int
    lam: float  # λ
    rounds: dict[str, int]
    mixture: tuple[str, ...]  # options of the networks of fedproto-mh


_CHANNELS = tuple(f"model.{k}.channels=[10,{width}]" for k, width in enumerate((18, 20, 22), 1))
_SETTINGS = {
    "mnist": Setting(
        "mnist_cnn", 2, 3, 1.0, {"fedproto": 100, "fedprox": 110, "fedper": 100, "fedrep": 100, "": 150}, _CHANNELS
    ),
    "femnist": Setting(
        "femnist_cnn", 1, 2, 1.0, {"fedproto": 120, "fesem": 200, "fedper": 250, "fedrep": 200, "": 300}, _CHANNELS
    ),
    "cifar10": Setting(
        "resnet18",
        1,
        2,
        0.1,
        {"fedproto": 110, "fesem": 120, "fedper": 130, "fedrep": 110, "": 150},
        ("model.1.stem_strides=[2,2]", "model.2.stem_strides=[1,4]"),
    ),
}


def _by_method(setting: Setting, *, mixed: bool) -> dict[str, Options]:
    options: dict[str, dict[str, Any]] = {method: {"rounds": n} for method, n in setting.rounds.items() if method}
    sets = {"fedproto": f"lam={setting.lam}", "fedprox": "mu=0.01" if setting.model == "resnet18" else "mu=1"}
    if setting.model != "resnet18" and not mixed:  # networks of different widths would have different features
        sets |= dict.fromkeys(("fedper", "fedrep"), "model.head_layers=2")
    for method, text in sets.items():
        options.setdefault(method, {})["set"] = [text]
    options["fedproto"]["set"].append("predict_classes=own")  # as the authors' code does
    return dict(options)


def _preset(data: str, ways: int, *, mixed: bool, wider: bool) -> Preset:
    setting = _SETTINGS[data]
    stdev = setting.wider if wider else setting.stdev
    models = len(setting.mixture) if mixed else 1
    table = _COMPLETE[data] if wider else 1
    return Preset(
        paper="Tan et al. 2022",
        about=f"table {table}, {data}, n = {ways} ± {stdev}"
        + (", fedproto-mh: networks of different sizes" if mixed else ""),
        clients=CLIENTS,
        needs=data + (" (or --data cifar10_jpg)" if data == "cifar10" else ""),
        options={
            **_TRAINING,
            "data": data,
            "model": "+".join([setting.model] * models),
            "rounds": setting.rounds[""],
            "partition": "n_way",
            "set": [
                *(f"partition.{key}={value}" for key, value in {"clients": CLIENTS, "ways": ways}.items()),
                *(f"partition.{key}={stdev}" for key in ("stdev", "shots_stdev")),
                *(setting.mixture if mixed else ()),
            ],
        },
        by_method=_by_method(setting, mixed=mixed),
        departures=(*((_MIXED,) if mixed else ()), *_OF_DATA[data], *_DEPARTURES),
    )


def _name(data: str, ways: int, *, mixed: bool, wider: bool) -> str:
    spread = f"-stdev-{_SETTINGS[data].wider}" if wider else ""
    return f"tan2022-{data}-{ways}" + ("-mh" if mixed else "") + spread


PRESETS = {
    _name(data, ways, mixed=mixed, wider=wider): _preset(data, ways, mixed=mixed, wider=wider)
    for data in _SETTINGS
    for wider in (False, True)
    for ways in WAYS
    for mixed in (False, True)
}
