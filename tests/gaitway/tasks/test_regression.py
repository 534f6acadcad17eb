"""A number as target: its scores by hand, the best constant answer, when a model works, and the torch half."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federation.errors import SettingsError
from federation.records import Batch, Output
from federation.tasks import task_from_json
from federation.tasks.regression import Regression
from gaitway.tasks import TargetKind, TaskError, metric_of
from gaitway.tasks.regression import NumberSoundness, RegressionTask, number_sums

LABELS = ("heart rate (beats/min)",)


def judged(truth: list[float], answered: list[float], **options: float) -> NumberSoundness:
    found = RegressionTask(**options).judge(np.array(truth), np.array(answered), LABELS).soundness
    assert isinstance(found, NumberSoundness)
    return found


def test_scores_are_in_the_numbers_own_unit() -> None:
    task = RegressionTask(center=100, spread=20)
    truth, answered = np.array([90.0, 100.0, 140.0]), np.array([95.0, 100.0, 130.0])
    scores = task.scores(number_sums((truth - 100) / 20, (answered - 100) / 20))
    assert scores["mae"] == pytest.approx((5 + 0 + 10) / 3)
    assert scores["r2"] == pytest.approx(1 - (25 + 100) / ((90 - 110) ** 2 + (100 - 110) ** 2 + (140 - 110) ** 2))


def test_answering_the_mean_explains_nothing_and_no_example_has_no_score() -> None:
    task = RegressionTask()
    truth = np.array([1.0, 2.0, 6.0])
    assert task.scores(number_sums(truth, np.full(3, 3.0)))["r2"] == pytest.approx(0)
    none = number_sums(np.empty(0), np.empty(0))
    assert np.isnan(list(task.scores(none).values())).all()
    assert task.trivial(none) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_trivial_answer_is_the_best_constant(seed: int) -> None:
    """Against the median, whose error no constant undercuts: at most the half of a cell more for each example."""
    draw = np.random.default_rng(seed)
    truth = 100 + 25 * draw.standard_t(3, 400)  # some lie outside the cells
    task = RegressionTask(center=100, spread=25)
    best = np.abs(truth - np.median(truth)).mean()
    found = task.trivial(number_sums((truth - 100) / 25, np.zeros(400)))
    assert found is not None
    assert best <= found + 1e-9 <= best + 25 / 16 + 1e-9


def test_the_torch_half_sums_what_numpy_does_and_padding_adds_nothing() -> None:
    draw = np.random.default_rng(0)
    truth, logits = draw.normal(60, 30, 50), draw.normal(0, 1, (50, 1)).astype(np.float32)
    task = task_from_json({"name": "regression", "center": 60, "spread": "30"})
    assert isinstance(task, Regression)
    mask = torch.ones(50)
    mask[40:] = 0
    output = Output(torch.empty(0), torch.from_numpy(logits), {})
    found = task.statistics(output, Batch(torch.empty(0), torch.from_numpy(truth), mask))
    expected = number_sums((truth[:40] - 60) / 30, logits[:40, 0].astype(np.float64))
    assert {name: pytest.approx(each.numpy(), abs=1e-9) for name, each in found.items()} == expected
    assert found.keys() == task.no_statistics(1).keys()
    loss = task.mean_loss(output, Batch(torch.empty(0), torch.from_numpy(truth), mask))
    assert float(loss) == pytest.approx(((logits[:40, 0] - (truth[:40] - 60) / 30) ** 2).mean(), rel=1e-5)
    np.testing.assert_allclose(task.prediction(output).numpy(), task.answers(logits), rtol=1e-6)


def test_statistics_of_stacked_clients_are_those_of_each() -> None:
    task, draw = Regression(center=1, spread=2), torch.Generator().manual_seed(0)
    logits, targets = torch.randn(3, 8, 1, generator=draw), torch.randn(3, 8, generator=draw).double()

    def of(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return task.statistics(Output(logits, logits, {}), Batch(logits, targets, torch.ones(8)))

    stacked = torch.vmap(of)(logits, targets)
    for i in range(3):
        for name, each in of(logits[i], targets[i]).items():
            torch.testing.assert_close(stacked[name][i], each)


def test_a_model_works_only_if_it_is_clearly_better_than_one_number() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(100, 20, 60)
    assert judged(list(truth), list(truth + draw.normal(0, 5, 60)), center=100, spread=20).works is True
    constant = judged(list(truth), [100.0] * 60, center=100, spread=20)
    assert constant.works is False
    assert "hardly better than always answering one number: mean absolute error" in constant.failure_reason
    assert judged(list(truth[:19]), list(truth[:19])).undecided_reason == "there are 19 holdout windows, fewer than 20"
    assert judged([5.0] * 30, [5.0] * 30).undecided_reason == "all 30 holdout windows have the same number"
    assert judged([], []).undecided_reason == "there are no holdout windows"
    assert constant.described()["metric"] == "mae"


def test_smaller_errors_are_better() -> None:
    task = RegressionTask()
    assert (task.target, task.primary_metric, metric_of("mae").higher_is_better) == (TargetKind.NUMBER, "mae", False)
    assert task.improves(2.0, 3.0)
    quality = task.judge(np.array([1.0, 1.0]), np.array([1.5, 4.0]), LABELS).quality
    assert quality.tolist() == [-0.5, -3.0]
    assert task.words(112.44, LABELS) == "heart rate (beats/min): 112.4"


def test_a_scale_far_from_the_numbers_is_said() -> None:
    truth = np.random.default_rng(0).normal(100, 20, 500)
    assert RegressionTask(center=95, spread=25).advice(truth) == ""
    assert "task.center=99.5 task.spread=20.3" in RegressionTask().advice(truth)
    assert RegressionTask(center=100, spread=1000).advice(truth)
    assert RegressionTask().advice(np.full(9, 7.0)) == ""


@pytest.mark.parametrize("options", [{"spread": 0}, {"spread": -1}, {"spread": float("nan")}, {"center": 1e30}])
def test_an_impossible_scale_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(TaskError, match="expected a center"):
        RegressionTask(**options)
    with pytest.raises(SettingsError, match="spread"):
        task_from_json({"name": "regression", **options})
