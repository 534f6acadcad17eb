"""Options in which runs differ: found, ordered, averaged over seeds, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.errors import AnalysisError
from sim.reports.analysis.sensitivity import sensitivity, shown
from tests.sim.example_run import write_run


def swept(folder: Path, name: str, score: float, seed: int = 0, **config: Any) -> Path:
    return write_run(folder / name, clients=3, rounds=2, seed=seed, personalization=score, config=config)


def beta(value: float, **method: Any) -> dict[str, Any]:
    return {"model_options": {"alp": {"beta": value}}, "method": {"name": "fedali", **method}}


def test_scores_over_one_option_are_means_over_seeds(tmp_path: Path) -> None:
    runs = [
        swept(tmp_path, "c", 0.9, **beta(0.5)),
        swept(tmp_path, "a", 0.5, **beta(0.1)),
        swept(tmp_path, "b", 0.7, seed=1, **_with_seed(beta(0.1), 1)),
    ]
    (section,) = sensitivity(runs)
    assert section.name == "model_options_alp_beta"
    line = section.values["all runs"]
    assert list(line) == ["0.1", "0.5"]
    assert line["0.1"]["personalization"] == {"mean": pytest.approx(0.6), "std": pytest.approx(0.1), "seeds": 2}
    assert line["0.5"]["personalization"]["seeds"] == 1


def _with_seed(config: dict[str, Any], seed: int) -> dict[str, Any]:
    training = {"classes": 6, "epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": 1e-4, "seed": seed}
    return {**config, "training": training}


def test_a_grid_gives_one_section_an_option_and_one_line_a_setting_of_the_rest(tmp_path: Path) -> None:
    runs = [
        swept(tmp_path, f"{value}-{pull}", 0.5 + value, **beta(value, lam=pull))
        for value in (0.1, 0.2)
        for pull in (1, 10)
    ]
    by_pull, by_beta = sensitivity(runs)
    assert (by_pull.name, by_beta.name) == ("method_lam", "model_options_alp_beta")
    assert list(by_beta.values) == ["lam=1", "lam=10"]
    assert by_beta.figures["scores"].figure.axes[0].get_title() == "personalization"


def test_values_are_in_ascending_order_and_lists_are_short(tmp_path: Path) -> None:
    counts = ([2048, 1024, 512], [64, 32, 16], [512, 256, 128])
    runs = [swept(tmp_path, str(c[0]), 0.5, model_options={"prototypes": c}) for c in counts]
    (section,) = sensitivity(runs)
    assert list(section.values["all runs"]) == ["[64…16]", "[512…128]", "[2048…512]"]
    assert shown([3, 4]) == "[3, 4]"


def test_runs_that_differ_in_two_options_together_are_refused(tmp_path: Path) -> None:
    runs = [swept(tmp_path, "a", 0.5, **beta(0.1, lam=1)), swept(tmp_path, "b", 0.5, **beta(0.2, lam=10))]
    with pytest.raises(AnalysisError, match=r"differ in method.lam, model_options.alp.beta together"):
        sensitivity(runs)
    with pytest.raises(AnalysisError, match="in nothing but the seed"):
        sensitivity(runs[:1])


def test_an_unfinished_run_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "half", finished=False)
    with pytest.raises(AnalysisError, match=r"not finished: .*half"):
        sensitivity([path])
