"""Classification against scipy and scikit-learn, and numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from torch.func import vmap

from federation.records import Batch, Output
from federation.records.tree import total
from federation.tasks.classification import Classification

TASK = Classification()
CLASSES = 5


def batch_of(count: int, padding: int, seed: int = 0) -> tuple[Output, Batch]:
    """Random logits and classes, of which class 4 is never true; the last `padding` rows are padding."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(size=(count, CLASSES)))
    classes = torch.from_numpy(random.integers(0, CLASSES - 1, count))
    mask = (torch.arange(count) < count - padding).double()
    return Output(torch.from_numpy(random.normal(size=(count, 3))), logits, {}), Batch(logits, classes, mask)


def test_the_loss_is_the_cross_entropy_of_each_example() -> None:
    output, batch = batch_of(7, padding=2)
    wanted = -log_softmax(output.logits.numpy(), axis=1)[np.arange(7), batch.y.numpy()]
    assert TASK.loss(output, batch).tolist() == pytest.approx(wanted, rel=1e-12)
    assert float(TASK.mean_loss(output, batch)) == pytest.approx(wanted[:5].mean(), rel=1e-12)


def test_metrics_of_batches_added_are_those_of_all_examples() -> None:
    batches = [batch_of(40, padding, seed) for seed, padding in enumerate((0, 3, 39, 40))]
    added = total(TASK.statistics(*each) for each in batches)
    kept = [(o.logits[b.mask > 0].argmax(1), b.y[b.mask > 0]) for o, b in batches]
    predicted, truth = (torch.cat(parts).numpy() for parts in zip(*kept, strict=True))
    assert added["confusion"].tolist() == confusion_matrix(truth, predicted, labels=range(CLASSES)).tolist()
    metrics = TASK.metrics(added)
    assert metrics["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"), rel=1e-12)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), rel=1e-12)


def test_statistics_are_lifted_over_clients() -> None:
    (output, batch), (other, _) = batch_of(9, 2), batch_of(9, 2, seed=1)
    logits = torch.stack([output.logits, other.logits])
    lifted = vmap(lambda one: TASK.statistics(Output(one, one, {}), batch)["confusion"])(logits)
    for found, each in zip(lifted, (output, other), strict=True):
        assert torch.equal(found, TASK.statistics(each, batch)["confusion"])


def test_no_examples_have_no_score() -> None:
    assert all(np.isnan(value) for value in TASK.metrics(TASK.no_statistics(CLASSES)).values())
    assert TASK.metrics(TASK.no_statistics(CLASSES)).keys() == TASK.metric_kinds.keys()


def test_more_is_better() -> None:
    assert TASK.improves(0.5, None)
    assert TASK.improves(0.5, 0.4)
    assert not TASK.improves(0.4, 0.4)
    assert not TASK.improves(None, None)


def test_an_output_of_pixels_is_refused_in_words() -> None:
    pixels = torch.zeros(1, CLASSES, 4, 4)
    said = TASK.mismatch(Output(pixels, pixels, {}), Batch(pixels, torch.zeros(1, dtype=torch.int64), torch.ones(1)))
    assert said == (
        "classification needs logits (examples, classes) and one class an example; the network gave (1, 5, 4, 4) for "
        "targets of shape (1,) and type torch.int64"
    )
