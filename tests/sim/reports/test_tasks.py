"""Reports and comparisons of runs whose metric is no share, and of which less is better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.reports.analysis.sensitivity import sensitivity
from sim.reports.comparison.compare import compare
from sim.reports.comparison.tables import print_comparison
from sim.reports.report import write_report
from sim.results.run_directory import RunDirectory
from sim.results.summary import print_summary
from tests.sim.example_run import write_run

ERRORS = {"fedprox": 0.02, "fedavg": 0.07, "moon": 0.9}


def as_errors(value: Any) -> Any:
    """Replace macro-F1 and accuracy by a mean squared error of the same numbers."""
    if isinstance(value, list):
        return [as_errors(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "macro_f1" in value:
        return {"mse": value["macro_f1"]}
    return {key: as_errors(each) for key, each in value.items()}


def restored(path: Path, method: str, seed: int = 0, lr: float = 1e-4) -> Path:
    """Write a run of masked reconstruction that ends with the method's error, a little more with each seed."""
    error = ERRORS[method] + 0.001 * seed
    config = {
        "task": {"name": "masked_reconstruction"},
        "training": {"classes": 6, "epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": lr, "seed": seed},
    }
    write_run(
        path, method=method, seed=seed, config=config,
        personalization=error, generalization=error + 0.01, global_score=error + 0.02, std=0.005,
    )  # fmt: skip
    for file in path.glob("*.json"):
        file.write_text(json.dumps(as_errors(json.loads(file.read_text()))))
    lines = [as_errors(json.loads(line)) for line in (path / "rounds.jsonl").read_text().splitlines()]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "confusion.json").write_text('{"personalization": null, "generalization": null, "global": null}')
    return path


def test_a_run_is_reported_by_its_own_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(restored(tmp_path / "run", "fedavg"))
    text = write_report(run).read_text()
    assert "personalization, mean squared error<b>0.0700 ± 0.0050</b>" in text
    assert "macro-F1" not in text
    assert "accuracy" not in text
    assert "<h2>Classes</h2>" not in text
    scores = sorted(each.personalization["mse"] or 0 for each in run.client_scores.values() if each.personalization)
    assert run.worst_tenth("mse") == pytest.approx((scores[-1] + scores[-2]) / 2), "the worst have the largest error"
    print_summary(run)
    printed = capsys.readouterr().out
    assert "mean squared error" in printed
    assert "0.0700 ± 0.0050" in printed
    assert (tmp_path / "run" / "plots" / "learning_curves.png").is_file()


@pytest.mark.ci
def test_less_is_better_in_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [restored(tmp_path / f"{method}{seed}", method, seed) for method in ERRORS for seed in range(3)]
    (group,) = compare(runs, tmp_path / "out").groups
    assert {row.method: row.ranks["personalization.mse"] for row in group.rows} == {
        "fedprox": 1,
        "fedavg": 2,
        "moon": 0,
    }
    tests = {row.method: row.tests["personalization.mse"] for row in group.rows if row.tests}
    assert tests["moon"].difference > 0.5 > 0 > tests["fedprox"].difference
    assert tests["moon"].spread.worse == 24
    assert tests["fedprox"].spread.better > tests["fedprox"].spread.worse
    print_comparison(compare(runs, tmp_path / "out"))
    printed = capsys.readouterr().out
    assert "mean squared error" in printed
    assert "F1" not in printed
    written = (tmp_path / "out" / "comparison.html").read_text()
    assert "pers. MSE" in written
    assert "pers. F1" not in written


@pytest.mark.ci
def test_runs_of_two_tasks_are_kept_apart(tmp_path: Path) -> None:
    runs = [restored(tmp_path / "errors", "fedavg"), write_run(tmp_path / "scores", method="fedavg")]
    groups = compare(runs, tmp_path / "out").groups
    assert {group.task for group in groups} == {"masked_reconstruction", "classification"}


def test_sensitivity_is_of_the_metric(tmp_path: Path) -> None:
    runs = [restored(tmp_path / str(lr), "fedavg", lr=lr) for lr in (0.1, 0.01)]
    (section,) = sensitivity(runs)
    assert section.text.startswith("Mean squared error of runs that differ in training.lr")
