"""Masked reconstruction against float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from federation.methods import METHODS
from federation.records import Batch, Output
from federation.records.tree import total
from federation.tasks.masked_reconstruction import MaskedReconstruction

TASK = MaskedReconstruction()


def batch_of(count: int, padding: int = 0, seed: int = 0) -> tuple[Output, Batch]:
    """Windows of 128 samples of six channels, four of eight patches hidden in each."""
    random = np.random.default_rng(seed)
    x, restored = (torch.from_numpy(random.normal(size=(count, 128, 6))) for _ in range(2))
    patches = torch.from_numpy(random.permuted(np.tile([0.0, 1.0], (count, 4)), axis=1))
    hidden = patches.repeat_interleave(16, 1)[:, :, None]
    mask = (torch.arange(count) < count - padding).double()
    return Output(x[:, 0], restored, {}, hidden), Batch(x, torch.zeros(count, dtype=torch.int64), mask)


def test_only_what_was_hidden_counts() -> None:
    output, batch = batch_of(5, padding=2)
    assert output.hidden is not None
    squares = (output.logits - batch.x).numpy() ** 2
    rows = output.hidden[:, :, 0].numpy() > 0
    wanted = [squares[n][rows[n]].mean() for n in range(5)]
    assert TASK.loss(output, batch).tolist() == pytest.approx(wanted, rel=1e-12)
    assert float(TASK.mean_loss(output, batch)) == pytest.approx(np.mean(wanted[:3]), rel=1e-12)


def test_metrics_of_batches_added_are_those_of_all_examples() -> None:
    batches = [batch_of(4, padding, seed) for seed, padding in enumerate((0, 1, 4))]
    errors = []
    for output, batch in batches:
        assert output.hidden is not None
        real = (output.hidden * batch.mask[:, None, None]).expand_as(batch.x) > 0
        errors.append((output.logits - batch.x)[real].numpy() ** 2)
    found = TASK.metrics(total(TASK.statistics(*each) for each in batches))
    assert found == pytest.approx({"mse": np.concatenate(errors).mean()}, rel=1e-12)
    assert math.isnan(TASK.metrics(TASK.no_statistics(6))["mse"])


def test_less_is_better() -> None:
    assert TASK.improves(0.3, 0.4)
    assert not TASK.improves(0.4, 0.4)
    assert TASK.improves(7.0, None)
    assert not TASK.improves(None, 7.0)


def test_prototypes_of_classes_are_refused_in_words() -> None:
    refused = {name for name, method in METHODS.items() if method().task_incompatibility(TASK)}
    assert refused == {"analytic", "fedpac", "fedproto", "fedpr", "fedproto_margin", "fedtgp", "pfedfda"}
    assert METHODS["fedpr"]().task_incompatibility(TASK) == (
        "the method fedpr uses class prototypes, but the task masked_reconstruction has no classes; use a method "
        "that shares only parameters, such as fedavg"
    )


def test_a_classifier_is_refused_in_words() -> None:
    output, batch = batch_of(1)
    assert TASK.mismatch(output, batch) is None
    said = TASK.mismatch(Output(torch.zeros(1, 5), torch.zeros(1, 6), {}), batch)
    assert said is not None
    assert said.endswith("for examples of shape (1, 128, 6) it gave (1, 6), and does not say what it hid")


def test_the_trivial_answer_is_the_mean_which_is_zero_of_normalized_windows() -> None:
    output, batch = batch_of(5, padding=2)
    found = TASK.statistics(output, batch)
    zeros = TASK.metrics(TASK.statistics(output._replace(logits=torch.zeros_like(batch.x)), batch))
    assert TASK.trivial_score(found) == pytest.approx(zeros["mse"], rel=1e-12)
    assert TASK.trivial_score(TASK.no_statistics(3)) is None


def test_it_counts_no_classes() -> None:
    assert TASK.class_counts(torch.zeros(4, dtype=torch.int64), 3) is None
    assert "has no classes" in (TASK.count_mismatch(4, examples=4) or "")
