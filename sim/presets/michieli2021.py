"""U. Michieli, M. Ozay: Prototype Guided Federated Learning of Visual Feature Representations, 2021, arXiv 2105.08982.

Table 1: 10 clients a round, drawn in proportion to their examples, F = 20 epochs of SGD, batches of 10, 80/20 splits of
each client; δ of a cohort are stragglers. FedAvg drops them, fedprox and fedproto_margin use what they did. The rows of
table 3 have presets of their own; FedAvg's and FedProto's are `michieli2021-mnist-δ`. Sections 5.2 and S1.3: Pascal
VOC by α, with its 20 classes of objects or four macro classes, is `michieli2021-voc-α` and `michieli2021-voc-macro-α`.
Differs from the paper: FEMNIST is EMNIST's letters a to j, upper and lower case. Generalization, which the paper does
not have, is measured on 2000 examples of the union. VOC: images are fitted into 256 × 256 pixels and not augmented,
of which the paper says nothing (`--set data.height=…`, `--augmentation flip=0.5,scale=0.5:2`); its MobileNet-V2 was
trained on ImageNet, ours is with `--set model.norm=frozen --init FILE`, torchvision's file of such weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from sim.presets.preset import Preset, Reported

DELTAS = (0, 50, 80)
ALPHAS = (0.01, 0.1, 1, 10, 100)
_TRAINING = {
    "epochs": 20,
    "batch": 10,
    "optimizer": "sgd",
    "clients_per_round": 10,
    "sampling": "examples",
    "eval_every": 10,
    "generalization_examples": 2000,
    "method": "fedproto_margin",
}

_DEPARTURES = (
    "as many rounds as table 1 says; the paper plays 10 % more rounds, and draws its curves as a moving average over a "
    "window of 10 % of the rounds. Here scores are those of a round; `sim analyse --together` draws moving averages",
    "the paper's accuracy and mIoU are the server's model's on all clients' test examples, here 'global'",
    "generalization, which the paper does not have, is measured on some examples of the union",
    "aggregate_margin is the mean distance between aggregate prototypes of different classes: the paper's AMM (eq. 15) "
    "as printed compares a set with itself, and is 1 for every model. Prototypes are of the clients whose updates are "
    "used (eq. 10), so not of dropped stragglers; centralized training has those of all examples",
    "loss and gradient dissimilarity are of the server's model over all clients, with 1,000 or more over 100 of them",
    "MMD is of features under the server's model, with an RBF kernel; the paper names neither",
    "fedproto_margin: of the ablation 'd⁺ only' the paper does not say what enters the sigmoid; here −d⁺",
    "prototypes, MMD, H_E and t-SNE use what enters the last layer, and in segmentation the pyramid's 256 maps at 1/16 "
    "of the sides, which DeepLab's authors count to the encoder. The paper doesn't say where its encoders end. It has "
    "MobileNet as the encoder, but its 320 last maps can be negative, and H_E takes features as shares of their sum",
    "fedatt: ε is 1.2, as its own authors have it; the paper does not say",
)
_LOG_NORMAL = (
    "sizes are log-normal, as in Li et al.'s code, with the paper's total and deviation; the paper says 'power law', "
    "and no formula"
)
_OF_DATA = {
    "synthetic": (
        f"{_LOG_NORMAL}. They are drawn again until both are within 1 %, so that one client has about 62 % of all",
    ),
    "mnist": (f"{_LOG_NORMAL}. σ is sought for each seed",),
    "femnist": (
        "letters a to j are EMNIST's, upper and lower case together; the paper's are lower-case, of LEAF's writers",
        f"{_LOG_NORMAL}. σ is sought for each seed",
    ),
    "celeba": (
        "images are 84 × 84, as in LEAF; the paper does not say",
        "all images of people with five or more are dealt; the paper's 177,457, 19.0 ± 7.0 a client, are fewer. Like "
        "its other counts they may be the training part of the published split",
    ),
}
_VOC_DEPARTURES = (
    "background is a class like the others: its pixels train, count in the mIoU, and have a prototype and margins; "
    "table 1 says that it is excluded, the supplement counts it among five macro classes, and neither says which mIoU "
    "is meant. Only the clients' classes are dealt without it",
    "images are fitted into 256 × 256 pixels and not augmented; the paper does not say",
    "the network starts from random weights with GroupNorm unless --init gives ImageNet's; the paper starts from those",
    "the learning rate decays by rounds; the paper does not say over what",
    "sizes are the quantiles of a power law, 66.7 ± 26.9 a client; the paper reports 66.7 ± 25.7, and no formula",
)


# rows of table 3 by name: what they are, the method, and what is changed
_ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fairness": ("clients weigh alike", "fedavg", {"set": ["weighting=uniform"]}),
    "fairness-iid": (
        "clients weigh alike, and are drawn alike",
        "fedavg",
        {"set": ["weighting=uniform"], "sampling": "uniform"},
    ),
    "toleration": ("what stragglers did is used", "fedavg", {"set": ["rounds.partial_work=use"]}),
    "fairness-toleration": ("both", "fedavg", {"set": ["weighting=uniform", "rounds.partial_work=use"]}),
    "no-toleration": ("stragglers are dropped", "fedproto_margin", {"set": ["rounds.partial_work=drop"]}),
    "positive": ("d⁺ only", "fedproto_margin", {"set": ["distance=positive"]}),
    "apm": ("APM only", "fedproto_margin", {"set": ["margins=apm"]}),
    "lpm": ("LPM only", "fedproto_margin", {"set": ["margins=lpm"]}),
}


_LARGER_HEADS = ("dense", "margin_cnn")
"""Models whose heads have two layers; celeba_cnn's is the last layer alone."""


class Setting(NamedTuple):
    """One row of table 1."""

    data: str
    clients: int
    model: str
    lr: float
    rounds: int
    mu: float  # of fedprox
    partition: str | None
    sets: tuple[str, ...]
    needs: str
    reported: Reported


_SETTINGS = {
    "synthetic": Setting(
        "synthetic_logistic", 30, "dense", 0.01, 200, 0.1, None,
        ("data.clients=30", "data.examples=9600", "data.deviation=1051.6"), "nothing", Reported(9600, 320.0, 1051.6),
    ),
    "mnist": Setting(
        "mnist", 1000, "margin_cnn", 0.01, 200, 1.0, "shards",
        ("partition.clients=1000", "partition.classes=2", "partition.examples=61676", "partition.deviation=164.7"),
        "mnist", Reported(61676, 61.7, 164.7),
    ),
    "femnist": Setting(
        "femnist", 200, "margin_cnn", 0.001, 400, 1.0, "shards",
        ("data.classes=10", "partition.clients=200", "partition.classes=5", "partition.examples=16421",
         "partition.deviation=143"),
        "femnist", Reported(16421, 82.1, 143.0),
    ),
    "celeba": Setting(
        "celeba", 9343, "celeba_cnn", 0.1, 200, 0.01, "natural", ("partition.minimum=5", "model.norm=none"),
        "celeba (20 GB of memory; data.identities=500 for fewer people)", Reported(177457, 19.0, 7.0),
    ),
}  # fmt: skip


def _preset(name: str, delta: int) -> Preset:
    setting = _SETTINGS[name]
    return Preset(
        paper="Michieli and Ozay 2021",
        about=f"table 2, {name}, δ = {delta} % stragglers",
        clients=setting.clients,
        needs=setting.needs,
        options={
            **_TRAINING,
            "data": setting.data,
            "model": setting.model,
            "lr": setting.lr,
            "rounds": setting.rounds,
            "partition": setting.partition,
            "stragglers": delta / 100,
            "set": [*(["model.features_at=last_layer"] if setting.model in _LARGER_HEADS else []), *setting.sets],
        },
        by_method={"fedprox": {"set": [f"mu={setting.mu}"]}},
        reported=setting.reported,
        departures=(*_OF_DATA[name], *_DEPARTURES),
    )


def _row(name: str) -> Preset:
    about, method, own = _ROWS[name]
    preset = _preset("mnist", 50)
    return replace(
        preset,
        about=f"table 3, {method}: {about}; δ = 50 %, or --stragglers 0 or 0.8",
        options={**preset.options, "method": method},
        by_method={**preset.by_method, method: own},
    )


def _voc(alpha: float, classes: str) -> Preset:
    what = "20 classes" if classes == "objects" else "4 macro classes"
    return Preset(
        paper="Michieli and Ozay 2021",
        about=f"figure 5, VOC, {what}, α = {alpha:g}",
        clients=100,
        needs="voc2012",
        where="VOCtrainval_11-May-2012.tar is at host.robots.ox.ac.uk/pascal/VOC/voc2012; SegmentationClassAug and "
        "train_aug.txt, as others publish the masks of the Semantic Boundaries Dataset, go into its folder VOC2012. "
        "The paper starts from ImageNet weights: --set model.norm=frozen --init FILE, torchvision's of MobileNet-V2",
        options={
            **_TRAINING,
            "data": "voc2012",
            "task": "segmentation",
            "model": "deeplab_v3plus",
            "partition": "power_law",
            "epochs": 2,
            "batch": 16,
            "optimizer": "adam",
            "lr": 1e-4,
            "lr_schedule": "polynomial",
            "weight_decay": 4e-5,
            "rounds": 400,
            "generalization_examples": 200,
            "set": [
                "model.features_at=encoder",
                "task.background=0",
                "data.masks=augmented",
                "data.one_object=true",
                "data.val=false",
                f"data.classes={classes}",
                f"partition.alpha={alpha:g}",
                "partition.gamma=3",
                "partition.clients=100",
                "partition.examples=6665",
            ],
        },
        reported=Reported(6665, 66.7, 25.7),
        departures=(*_VOC_DEPARTURES, *_DEPARTURES),
    )


PRESETS = {
    **{f"michieli2021-{name}-{delta}": _preset(name, delta) for name in _SETTINGS for delta in DELTAS},
    **{f"michieli2021-mnist-{name}": _row(name) for name in _ROWS},
    **{f"michieli2021-voc-{alpha:g}": _voc(alpha, "objects") for alpha in ALPHAS},
    **{f"michieli2021-voc-macro-{alpha:g}": _voc(alpha, "macro") for alpha in ALPHAS},
}
