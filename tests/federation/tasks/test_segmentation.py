"""Segmentation against float64 numpy that goes pixel by pixel, and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from federation.aggregation.class_statistics import class_stats
from federation.errors import SettingsError
from federation.records import Batch, Output
from federation.records.tree import total
from federation.tasks import task_from_json, task_to_json
from federation.tasks.segmentation import Segmentation, nearest

TASK = Segmentation()
CLASSES = 4


def batch_of(images: int, padding: int = 0, seed: int = 0, dtype: torch.dtype = torch.int64) -> tuple[Output, Batch]:
    """Images of 6 × 8 pixels, a fifth of them ignored, features of 3 × 4; class 3 is nowhere true."""
    random = np.random.default_rng(seed)
    targets = random.choice([0, 1, 2, 255], size=(images, 6, 8), p=[0.5, 0.2, 0.1, 0.2])
    logits = torch.from_numpy(random.normal(size=(images, CLASSES, 6, 8)))
    features = torch.from_numpy(random.normal(size=(images, 5, 3, 4)))
    mask = (torch.arange(images) < images - padding).double()
    return Output(features, logits, {}), Batch(logits, torch.from_numpy(targets).to(dtype), mask)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_the_loss_is_the_mean_over_an_images_labelled_pixels(dtype: torch.dtype) -> None:
    output, batch = batch_of(3, padding=1, dtype=dtype)
    batch.y[1] = 255
    logs = log_softmax(output.logits.numpy(), axis=1)
    pixels = [-logs[0, c, i, j] for (i, j), c in np.ndenumerate(batch.y[0].numpy()) if c != 255]
    assert float(TASK.loss(output, batch)[0]) == pytest.approx(np.mean(pixels), rel=1e-12)
    assert float(TASK.loss(output, batch)[1]) == 0.0, "an image without a labelled pixel loses nothing"
    assert float(TASK.mean_loss(output, batch)) == pytest.approx(np.mean(pixels) / 2, rel=1e-12)


def test_ignored_pixels_have_no_gradient() -> None:
    output, batch = batch_of(2)
    logits = output.logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(TASK.mean_loss(output._replace(logits=logits), batch), [logits])
    ignored = (batch.y == 255)[:, None].expand_as(gradient)
    assert float(gradient[ignored].abs().max()) == 0.0
    assert float(gradient[~ignored].abs().min()) > 0.0


def test_metrics_of_batches_added_are_those_of_all_pixels() -> None:
    batches = [batch_of(4, padding, seed) for seed, padding in enumerate((0, 1, 4))]
    counts = np.zeros((CLASSES, CLASSES))
    for output, batch in batches:
        answers = output.logits.numpy().argmax(1)
        for (n, i, j), c in np.ndenumerate(batch.y.numpy()):
            if c != 255 and batch.mask[n] > 0:
                counts[c, answers[n, i, j]] += 1
    added = total(TASK.statistics(*each) for each in batches)
    assert added["confusion"].tolist() == counts.tolist()
    union = [counts[c].sum() + counts[:, c].sum() - counts[c, c] for c in range(CLASSES)]
    wanted = np.mean([counts[c, c] / union[c] for c in range(CLASSES)])
    assert TASK.metrics(added) == pytest.approx(
        {"mean_iou": wanted, "pixel_accuracy": np.trace(counts) / counts.sum()}, rel=1e-12
    )


def test_mean_iou_by_hand() -> None:
    """IoU 3/(4 + 3 − 3) of class 0, 2/(2 + 3 − 2) of class 1; class 2 is neither true nor predicted."""
    matrix = torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    assert TASK.metrics({"confusion": matrix}) == pytest.approx(
        {"mean_iou": (3 / 4 + 2 / 3) / 2, "pixel_accuracy": 5 / 6}
    )
    assert TASK.class_scores({"confusion": matrix}) == pytest.approx([3 / 4, 2 / 3, math.nan], nan_ok=True)
    missed = torch.tensor([[3, 0, 0], [0, 2, 0], [1, 0, 0]])
    assert TASK.metrics({"confusion": missed})["mean_iou"] == pytest.approx((3 / 4 + 1 + 0) / 3), "a missed class is 0"
    assert all(math.isnan(value) for value in TASK.metrics(TASK.no_statistics(3)).values())


def test_class_statistics_are_per_pixel_of_the_features() -> None:
    output, batch = batch_of(3, padding=1)
    found = class_stats(TASK.labelled_features(output, batch), CLASSES)
    features = output.features.numpy()
    counts, sums, squares = np.zeros(CLASSES), np.zeros((CLASSES, 5)), np.zeros(CLASSES)
    for n in range(2):
        for i in range(3):
            for j in range(4):
                c = int(batch.y[n, 2 * i + 1, 2 * j + 1])  # of a cell of 2 × 2 the pixel right below its centre
                if c != 255:
                    counts[c] += 1
                    sums[c] += features[n, :, i, j]
                    squares[c] += (features[n, :, i, j] ** 2).sum()
    assert counts[3] == 0, "an empty class"
    assert found.counts.tolist() == counts.tolist()
    np.testing.assert_allclose(found.total, sums, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.square, squares, rtol=1e-12)


def test_targets_are_scaled_by_the_pixel_at_the_centre() -> None:
    rows = torch.arange(7)[None, :, None].expand(1, 7, 3)
    assert nearest(rows, torch.Size((3, 3)))[0, :, 0].tolist() == [1, 3, 5]
    assert torch.equal(nearest(rows, torch.Size((7, 3))), rows)


@pytest.mark.parametrize(("background", "expected"), [(None, [0, 2, 0]), (0, [1, 2, 0])])
def test_an_image_is_dealt_by_the_class_of_most_pixels(background: int | None, expected: list[int]) -> None:
    images = torch.tensor([[[0, 0, 0], [1, 1, 255]], [[2, 2, 1], [0, 255, 255]], [[255] * 3, [255] * 3]])
    task = Segmentation(background=background)
    assert task.partition_label(images).tolist() == expected
    assert task.partition_label(images[:0]).tolist() == []


def test_options_travel_as_json() -> None:
    task = Segmentation(background=0, ignore_index=11)
    assert task_from_json(task_to_json(task)) == task
    with pytest.raises(SettingsError, match="unknown option of segmentation 'ignore'; did you mean 'ignore_index'"):
        task_from_json({"name": "segmentation", "ignore": 3})
    with pytest.raises(SettingsError, match="ignore_index=-1, background=None: expected classes of 0 or more"):
        task_from_json({"name": "segmentation", "ignore_index": -1})


def test_an_output_without_pixels_is_refused_in_words() -> None:
    output, batch = batch_of(1)
    assert TASK.mismatch(output, batch) is None
    said = TASK.mismatch(Output(torch.zeros(1, 5), torch.zeros(1, 4), {}), batch)
    assert said is not None
    assert said.endswith("the network gave (1, 4) and (1, 5) for targets of shape (1, 6, 8)")


def test_the_trivial_answer_is_the_most_frequent_class_everywhere() -> None:
    output, batch = batch_of(3)
    found = TASK.statistics(output, batch)
    answers = torch.zeros_like(output.logits)
    answers[:, 0] = 1.0  # class 0 is the most frequent
    constant = TASK.metrics(TASK.statistics(output._replace(logits=answers), batch))
    assert TASK.trivial_score(found) == pytest.approx(constant["mean_iou"], rel=1e-12)
    assert TASK.trivial_score(TASK.no_statistics(CLASSES)) is None


def test_pixels_are_counted_by_class_and_are_not_held_against_images() -> None:
    _, batch = batch_of(2)
    counts = [int((batch.y == c).sum()) for c in range(CLASSES)]
    assert TASK.class_counts(batch.y, CLASSES) == counts
    assert TASK.count_mismatch(sum(counts), examples=2) is None
    assert "at the most in 2 examples" in (TASK.count_mismatch(10**9, examples=2) or "")
