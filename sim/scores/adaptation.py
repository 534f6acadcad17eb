"""Adaptation to a new user without labels: the head that answers the centroid of what the model is surest of.

After Y. Iwasawa, Y. Matsuo: Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, NeurIPS
2021 (T3A): a class is represented by the features that the model puts into it with the least entropy.
Differs from the paper: from the windows of a user's first time, all at once, not from those that are classified; the
half of each class with the least entropy, not the M least; the nearest centroid by L2, without the head's own weights,
which a head of two layers does not have among the features; so what is never recognized of a user is not predicted.

Re-estimated normalization, the other common adaptation without labels, is `--normalization client`: a new user's
windows are normalized by their own statistics. The networks themselves have GroupNorm, which keeps none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from federation.aggregation import prototypes
from federation.errors import SettingsError
from federation.methods.fedavg import FedAvg
from federation.records import Client
from federation.records.head import check_dense
from federation.training.prediction import answer
from gaitway.tasks import TargetKind
from sim.scores.evaluation import ClientModel

KEPT_SHARE = 0.5
"""Of the windows that the model puts into a class, those of the least entropy."""


def adapt_head(model: ClientModel, x: Tensor, batch_size: int) -> ClientModel | None:
    """Return the network that a client serves with, under a head made of its unlabelled x (n, ...); its own without.

    None where there is no class an example, or the head cannot be made linear of the network's features.
    """
    setup, served = model.setup, model.setup.method.serving_model(model.client)
    if setup.task.target is not TargetKind.CLASS or setup.network.features_at != "head":
        return None
    if not _has_linear_head(served, setup.training.classes):
        return None
    plain = ClientModel(replace(setup, method=FedAvg()), served)
    if not len(x):
        return plain
    outputs = [answer(setup, model.client, part) for part in torch.split(x, batch_size)]
    features = torch.cat([output.features for output in outputs])
    centroids, known = confident_centroids(features, torch.cat([output.logits for output in outputs]))
    memory = {"prototypes": centroids, "known": known, "counts": torch.zeros_like(known)}
    return plain._replace(client=prototypes.with_nearest_head(served._replace(memory=memory), "all"))


def confident_centroids(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return of features (n, D) and logits (n, C) each class's centroid (C, D), and 1 where it has one (C,)."""
    chances = torch.softmax(logits, 1)
    entropy, answers = torch.special.entr(chances).sum(1), logits.argmax(1)
    centroids, known = features.new_zeros(logits.shape[1], features.shape[1]), features.new_zeros(logits.shape[1])
    for label in torch.unique(answers).tolist():
        rows = (answers == label).nonzero()[:, 0]
        surest = rows[entropy[rows].argsort(stable=True)[: max(1, int(len(rows) * KEPT_SHARE))]]
        centroids[label], known[label] = features[surest].mean(0), 1
    return centroids, known


def _has_linear_head(served: Client, classes: int) -> bool:
    try:
        check_dense(served.params, classes, "adaptation")
    except SettingsError:
        return False
    return True
