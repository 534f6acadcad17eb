"""When a model counts as one that works; scikit-learn's dummy classifiers and metrics are the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.metrics import balanced_accuracy_score, f1_score

from gaitway.tasks.classification import ClassSoundness
from gaitway.tasks.masked_reconstruction import RestorationSoundness
from gaitway.tasks.segmentation import PixelSoundness
from gaitway.tasks.soundness import Soundness

Classes = np.ndarray[tuple[int], np.dtype[np.int64]]
LABELS = tuple("abcdef")


def balanced(windows: int = 120, classes: int = 6) -> Classes:
    return np.arange(windows) % classes


def skewed(windows: int = 400, rare: int = 20) -> Classes:
    return (np.arange(windows) < rare).astype(np.int64)


def of(truth: Classes, answered: Classes) -> Soundness:
    return ClassSoundness.of(truth, answered.astype(np.int64), LABELS)


def dummy(truth: Classes, strategy: str, seed: int = 0) -> Classes:
    found: Classes = DummyClassifier(strategy=strategy, random_state=seed).fit(truth, truth).predict(truth)
    return found


@pytest.mark.parametrize("truth", [balanced(), balanced(20, 2), skewed()])
def test_the_most_frequent_answer_never_works_and_has_the_score_that_is_said(truth: Classes) -> None:
    constant = dummy(truth, "most_frequent")
    found = of(truth, constant)
    assert found.works is False
    assert f"it answers {LABELS[constant[0]]!r} whatever it sees" in found.failure_reason
    assert found.score == found.trivial == pytest.approx(f1_score(truth, constant, average="macro"))


@pytest.mark.parametrize("truth", [balanced(), balanced(20, 2), balanced(1000, 3), skewed()])
@pytest.mark.parametrize("strategy", ["uniform", "stratified"])
def test_a_guess_works_once_in_twenty_times_at_most_about(truth: Classes, strategy: str) -> None:
    lucky = sum(of(truth, dummy(truth, strategy, seed)).works is True for seed in range(300))
    assert lucky <= 30


def test_by_macro_f1_alone_a_guess_over_six_classes_would_pass() -> None:
    truth = balanced()
    guess = dummy(truth, "uniform")
    found = of(truth, guess)
    assert found.score is not None
    assert found.trivial is not None
    assert found.score > 2 * found.trivial
    assert "hardly better than guessing" in found.failure_reason


def test_a_good_model_on_a_skewed_holdout_works_although_the_constant_answer_is_right_more_often() -> None:
    truth = skewed()  # 95 % are of class 0
    answered = truth.copy()
    answered[:2], answered[20:60] = 0, 1
    assert (answered == truth).mean() == 0.895
    assert balanced_accuracy_score(truth, answered) == pytest.approx((0.9 + 340 / 380) / 2)
    assert of(truth, answered).works is True


def test_one_that_is_right_but_for_a_few_stray_answers_of_another_class_is_not_let_in_by_them() -> None:
    truth = balanced()
    answered = np.zeros_like(truth)
    answered[[1, 7, 13]] = 1  # which is right
    found = of(truth, answered)
    assert found.score is not None
    assert found.trivial is not None
    assert found.score > found.trivial
    assert found.works is False


def test_a_weak_model_of_a_first_round_works() -> None:
    truth = balanced()
    answered = truth.copy()
    answered[36:] = 0  # 42 % right
    assert of(truth, answered).works is True


@pytest.mark.parametrize(
    ("truth", "obstacle"),
    [
        (balanced(0), "there are no holdout windows"),
        (balanced(50, 1), "all 50 holdout windows are of one class"),
        (balanced(19, 2), "there are 19 holdout windows, fewer than 20"),
        (skewed(100, 4), "fewer than 2 classes have 5 holdout windows or more"),
    ],
)
def test_a_holdout_that_cannot_tell_says_why(truth: Classes, obstacle: str) -> None:
    found = of(truth, truth)
    assert (found.works, found.failure_reason, found.undecided_reason) == (None, "", obstacle)


def test_a_stray_class_does_not_count_in_the_mean_recall() -> None:
    truth = np.r_[balanced(60, 2), [5]]
    answered = truth.copy()
    answered[-1] = 0
    assert of(truth, answered).works is True


def test_of_masks_the_constant_answer_is_one_class_for_every_pixel() -> None:
    # 30 images of 100 pixels: 80 background, 20 shape; IoU of the constant answer (0.8 + 0) / 2
    truth = np.tile([0] * 80 + [1] * 20, 30)
    perfect, constant = (np.zeros((2, 2), np.int64) for _ in range(2))
    np.add.at(perfect, (truth, truth), 1)
    np.add.at(constant, (truth, np.zeros_like(truth)), 1)
    found = PixelSoundness(perfect, ("none", "shape"), images=30)
    assert (found.works, found.score, found.trivial) == (True, 1.0, pytest.approx(0.4))
    assert found.words == (
        "mIoU 1.000 on 30 holdout images of 2 classes against 0.400 of answering the most frequent class for every "
        "pixel"
    )
    assert PixelSoundness(constant, ("none", "shape"), images=30).failure_reason == "it answers 'none' whatever it sees"
    assert "fewer than 20" in PixelSoundness(perfect, ("none", "shape"), images=5).undecided_reason


def test_of_a_restored_signal_a_lower_error_than_the_means_works() -> None:
    found = RestorationSoundness(40, 0.25, 1.0)
    assert (found.works, found.metric) == (True, "mse")
    assert RestorationSoundness(40, 1.0, 1.0).works is False
    assert RestorationSoundness(0, None, None).works is None
    assert RestorationSoundness(0, None, None).words == ""
