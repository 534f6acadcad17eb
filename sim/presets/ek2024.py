"""S. Ek, K. Wang, F. Portet, P. Lalanda, J. Cao: FedAli, 2024, arXiv 2411.10595: tables 1 to 6, figures 3 to 5.

HART (HAR) or ViT tiny (CIFAR), with ALP layers for FedAli; Adam 1e-4, batches of 64, 5 local epochs, all clients, 80/20
splits at random, which leak between overlapping windows. Local and centralized train for 200 epochs. FedProto is
evaluated by its head, as the authors do.

Table 3 (local time, memory, bytes against FedAvg) is `ek2024-hhar-overhead` with each method, then `sim compare`.
Memory agrees: HART has 5.8 MB, FedAli's two sets of prototypes make it 2.38 ×; FedProx and MOON keep one and two former
models, 2 × and 3 ×, which the paper counts without their heads, 1.86 and 2.72. The bytes of two methods do not agree:
FedPer's 0.14 is the head's share of HART, which stays at home; the base that travels is 0.86. FedAli's 2.38 counts both
sets of prototypes; here one travels, 1.84 ×.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from models.registry import with_alp
from sim.presets.preset import Options, Preset

PAPER = "Ek et al. 2024"
_TRAINING = {"epochs": 5, "batch": 64, "lr": 1e-4, "optimizer": "adam", "split": "random80", "method": "fedali"}
# appendix B: down-sampled after an anti-alias filter, so what has 50 Hz is left as it is
_PIPELINE = ("pipeline.anti_alias=downsampling",)
_EPOCHS_200 = {"rounds": 40}
_DEPARTURES = (
    "fedprox: μ is 0.01, as the paper says; the authors' code has 0.2",
    "fedali: a prototype moves to the mean of its best tokens, as section 3.1 says (model.alp_update=soft); appendix A "
    "sums normalized tokens under the plan's entries (appendix), and what the authors' code trains from scratch has "
    "hard single updates (single)",
    "fedali: the first round trains with β = 0 (beta_warmup_rounds), as in the authors' code; not in the paper",
    "fedali: a cluster that k-means empties keeps its centre; the authors' code drops it",
    "fedproto: classes are told by the head, as in the authors' code; the paper does not say",
    "moon, fedproto: the last, short batch trains and counts, too; the authors' code of moon drops it, and that of "
    "fedproto averages features while they are still trained",
    "fedpac: a client's class means are of the base that it received; the authors' code measures them after training",
    "local, centralized: 200 epochs as 40 rounds of 5, each with a fresh Adam",
)
_HAR_DEPARTURES = (
    "600 rounds, as the paper says; the authors' code has 200",
    "windows are split at random, 80/20, as the paper says; the authors' code takes seven of ten stratified folds in "
    "the order of time to train on, and three to test on (--split kfold7_3)",
    "samples are resampled to 50 Hz along their times, then cut into windows; the authors' code cuts windows first, "
    "and keeps of each every second to fourth sample behind a low-pass",
    "sensors of 50 Hz have no anti-alias filter, as the paper's 'down-sampled after an Anti-Alias filter' says; the "
    "authors' code leaves RealWorld's as they are, and low-passes HHAR's phones of 50 Hz at 20 Hz",
    "light convolutions run along time, as the paper says; in the authors' code a reshape without a transpose lets "
    "them run along channels, and each step writes the softmax of the kernels back into them",
)
_NORMALIZATION = (
    "windows are normalized by channel over all clients' training windows, as the paper's 'channel-wise' says; the "
    "authors' code has one mean and deviation for all three axes of a sensor, for {}, test windows included"
)
_NORMALIZED_BY = {
    "hhar": "each phone model",
    "realworld": "the watch and for the phones",
    "combined": "each phone model of HHAR, and RealWorld's watch and phones",
}
_ALL_CLASSES = (
    "a client that lacks a class stays; the authors' code leaves it out, and the paper counts 36 all the same"
)
_CIFAR_DEPARTURES = (
    "test images are the published ones, dealt in the proportions of a client's training classes; the paper says "
    "80/20 of recordings, and of CIFAR nothing",
    "Dirichlet deals each class among clients; a draw is repeated until each has 10 images, and a client with its "
    "equal share gets nothing of further classes, as in the code of Yurochkin et al. 2019; the paper gives α alone",
    "images are not augmented, and patches are 4 × 4; the paper does not say. No code of its vision part was released",
)
_PRETRAINING_NOTE = "the pretraining is a federation; the paper pretrains in one place"
_MASKED = (
    "pretraining hides 4 of a window's 8 patches, 50 %, as the authors' code does, which floors the paper's 60 %; "
    "--set task.masked=0.625 hides 5, 62.5 %",
    "the five sets have 160 clients, one for each user and place, or 133 with --clients-by user; the paper counts 122 "
    "subjects. Windows without an activity are left out unless pipeline.keep_unlabelled=true; the paper does not say",
)
_PRETRAINED = (
    "an epoch of `sim pretrain` is a round with a fresh Adam, after which the global prototypes are the local ones; "
    "the paper does not say what moves them without a server",
    "pretrained networks have the dropout of the others (0.3); the authors' code has 0.1 in their blocks, 0.5 before "
    "the last layer",
)
_CONVERGENCE = (
    "each epoch is a round of the method local, with a fresh Adam; distances are those from epoch to epoch, the mean "
    "over a block's prototypes and all 36 clients; the paper does not say whose prototypes it shows",
    "no server sets the global prototypes, which stay as they were drawn; the paper does not say what they are",
)
_BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
_MAX_PROTOTYPES = (1024, 2048, 4096)  # of the first block; each further one has half as many
# by name: the table, and the options of the ALP layers; without any they are the paper's
_VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "full": (4, {}),
    "no-glu": (4, {"alp": {"glu": False}}),
    "no-global": (4, {"alp": {"prototypes": "local"}}),
    "no-local": (4, {"alp": {"prototypes": "global"}}),
    "cosine": (4, {"alp": {"match": "cosine"}}),
    "euclidean": (4, {"alp": {"match": "euclidean"}}),
    **{f"beta-{beta}": (5, {"alp": {"beta": beta}}) for beta in _BETAS},
    **{f"prototypes-{most}": (6, {"prototypes": [most >> block for block in range(6)]}) for most in _MAX_PROTOTYPES},
}


def _by_method(network: str) -> dict[str, Options]:
    return {
        "fedali": {"model": with_alp(network)},
        "fedprox": {"set": ["mu=0.01"]},
        "fedproto": {"set": ["predict_by=head"]},
        "local": _EPOCHS_200,
        "centralized": _EPOCHS_200,
    }


def _har(data: str, clients: int, about: str, needs: str, **options: Any) -> Preset:
    chosen = {**_TRAINING, "rounds": 600, "data": data, "model": "hart", "set": _PIPELINE, **options}
    return Preset(
        paper=PAPER,
        about=about,
        clients=clients,
        needs=needs,
        options=chosen,
        by_method=_by_method("hart"),
        departures=(*_HAR_DEPARTURES, *_of_data(data), *_DEPARTURES),
    )


def _of_data(data: str) -> tuple[str, ...]:
    """Say how one data set's recordings are taken otherwise than by the authors."""
    by = _NORMALIZED_BY.get(data)
    found = () if by is None else (_NORMALIZATION.format(by),)
    return (*found, _ALL_CLASSES) if data in ("hhar", "combined") else found


def _more(preset: Preset, *departures: str) -> tuple[str, ...]:
    return (*departures, *preset.departures)


def _sampled(percent: int) -> Preset:
    a_round = round(141 * percent / 100)
    about = f"appendix D: {percent} % of the clients a round"
    preset = _har("combined", 141, about, "hhar and realworld", clients_per_round=a_round)
    orders = "a round's clients are drawn by the seed; the authors published the orders that they drew"
    return replace(preset, departures=_more(preset, orders))


def _variant(name: str, table: int, alp: dict[str, Any]) -> Preset:
    preset = _har("hhar", 36, f"table {table}, ALP layers: {name}, 200 rounds", "hhar", rounds=200)
    own = {"model": "hart_alp", "set": [f"model.{key}={json.dumps(value)}" for key, value in alp.items()]}
    return replace(preset, by_method={**preset.by_method, "fedali": own})


def _overhead() -> Preset:
    about = "table 3: time, memory and bytes against fedavg by `sim compare`, one client after the other"
    once = {"rounds": 3, "eval_every": 3, "engine": "serial"}
    preset = _har("hhar", 36, about, "hhar", **once)
    own = {method: {**options, "rounds": 3} for method, options in preset.by_method.items()}
    return replace(preset, by_method=own)


def _convergence() -> Preset:
    about = "figure 5, appendix G: local prototypes over 200 epochs, drawn by `sim analyse`"
    options = {"method": "local", "model": "hart_alp", "epochs": 1, "rounds": 200, "eval_every": 200}
    preset = _har("hhar", 36, about, "hhar", **options)
    return replace(preset, by_method={}, departures=_more(preset, *_CONVERGENCE))


def _pretrained() -> Preset:
    about = "figure 3: pretrained as a masked autoencoder on five other data sets"
    preset = _har("hhar", 36, about, "hhar, and --init")
    return replace(preset, pretraining="pretraining", departures=_more(preset, *_MASKED, *_PRETRAINED))


def _masked(data: str, clients: int, about: str, needs: str, **options: Any) -> Preset:
    """Figure 3's pretraining as a federation: its rate, batches and epochs, a local epoch in each round."""
    own = {"task": "masked_reconstruction", "method": "fedavg", "epochs": 1, "batch": 128, "lr": 3e-4, "rounds": 200}
    preset = _har(data, clients, about, needs, **own, **options)
    kept = {name: preset.by_method[name] for name in ("fedali", "fedprox")}
    noted = _MASKED if data == "pretraining" else _MASKED[:1]
    return replace(preset, by_method=kept, departures=_more(preset, _PRETRAINING_NOTE, *noted))


def _then_labels(pretrained_by: str, about: str, **options: Any) -> Preset:
    preset = _har("hhar", 36, about, "hhar, and --init", **options)
    return replace(preset, pretrained_by=pretrained_by, departures=_more(preset, _PRETRAINING_NOTE, _PRETRAINED[1]))


def _cifar(classes: int, clients: int) -> Preset:
    return Preset(
        paper=PAPER,
        about=f"CIFAR-{classes}, Dirichlet 0.3 among {clients} clients, ViT tiny (with ALP for fedali)",
        clients=clients,
        needs=f"cifar{classes} (or --data cifar{classes}_jpg)",
        options={
            **_TRAINING,
            "data": f"cifar{classes}",
            "model": "vit_tiny",
            "rounds": 200,
            "partition": "dirichlet",
            "set": [f"partition.clients={clients}", "partition.alpha=0.3"],
        },
        by_method=_by_method("vit_tiny"),
        departures=(*_CIFAR_DEPARTURES, *_DEPARTURES),
    )


PRESETS = {
    "ek2024-hhar": _har("hhar", 36, "table 1, HHAR: 9 users × 4 phones", "hhar"),
    "ek2024-realworld": _har("realworld", 105, "table 1, RealWorld 2016: 15 subjects × 7 places", "realworld"),
    "ek2024-combined": _har("combined", 141, "table 1, both together", "hhar and realworld"),
    **{f"ek2024-combined-{percent}-percent": _sampled(percent) for percent in (10, 20, 50)},
    **{f"ek2024-hhar-{name}": _variant(name, *variant) for name, variant in _VARIANTS.items()},
    "ek2024-hhar-overhead": _overhead(),
    "ek2024-hhar-convergence": _convergence(),
    "ek2024-hhar-pretrained": _pretrained(),
    "ek2024-masked": _masked(
        "pretraining",
        160,
        "ours: figure 3's pretraining as a federation of its devices, without labels, on all windows",
        "all five",
        set=(*_PIPELINE, "data.test_share=0"),
    ),
    "ek2024-hhar-after-masked": _then_labels("ek2024-masked", "ours: figure 3, pretrained by that federation"),
    "ek2024-hhar-masked": _masked("hhar", 36, "ours: HHAR's own devices pretrain, without labels", "hhar"),
    "ek2024-hhar-few-labels": _then_labels(
        "ek2024-hhar-masked",
        "ours: then a quarter of them have 10 labelled windows a class",
        labelled_per_class=10,
        labelled_clients=0.25,
    ),
    **{f"ek2024-cifar{classes}-{k}": _cifar(classes, k) for classes in (10, 100) for k in (20, 50)},
}
