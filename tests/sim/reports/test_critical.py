"""The critical part of a comparison: who is tested against whom, with which numbers, and what is ranked over data."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from gaitway.terminal import Console
from sim.errors import RunDirectoryError, SettingsError
from sim.reports.comparison.compare import compare, differences, over_bytes, page_of
from sim.reports.comparison.groups import compare_runs
from sim.reports.comparison.records import ComparedScore, Comparison, Group, Row
from sim.reports.comparison.tables import print_comparison
from sim.reports.figures.style import draw
from sim.reports.page import markdown
from sim.results.run_directory import RunDirectory
from sim.sweep.grid import Cell
from sim.sweep.processes import SweepRecord
from tests.sim.example_run import plain, spread, write_run

pytestmark = pytest.mark.ci

Array = npt.NDArray[np.float64]


def compared(paths: list[Path], baseline: str | None = None) -> Comparison:
    return compare_runs([RunDirectory(path) for path in paths], baseline)


def only_group(paths: list[Path], baseline: str | None = None) -> Group:
    (group,) = compared(paths, baseline).groups
    return group


def rows_of(group: Group) -> dict[str, Row]:
    return {row.label: row for row in group.rows}


def give_scores(path: Path, values: list[float]) -> None:
    """Replace each client's personalization."""
    scores = json.loads((path / "client_scores.json").read_text())
    for entry, value in zip(scores.values(), values, strict=True):
        entry["personalization"] = entry["last"]["personalization"] = plain(value)
    (path / "client_scores.json").write_text(json.dumps(scores))


SEEDS = 6


@pytest.fixture
def six_seeds(tmp_path: Path) -> tuple[list[Path], dict[str, Array]]:
    """Three methods with six seeds on 24 clients, and every client's score (seeds, clients) by method."""
    random = np.random.default_rng(2)
    of_seed = random.normal(0, 0.02, (SEEDS, 1))  # what all clients of a run share: one server's model
    shifts = {"fedavg": 0.0, "fedprox": 0.004, "fedali": 0.03}
    scores = {
        name: random.uniform(0.6, 0.9, (SEEDS, 24)) + of_seed + random.normal(shift, 0.01, (SEEDS, 1))
        for name, shift in shifts.items()
    }
    paths = []
    for (method, values), seed in itertools.product(scores.items(), range(SEEDS)):
        paths.append(write_run(tmp_path / f"{method}{seed}", method=method, seed=seed))
        give_scores(paths[-1], values[seed].tolist())
    return paths, scores


def test_tests_are_scipys_on_the_seeds(six_seeds: tuple[list[Path], dict[str, Array]]) -> None:
    paths, scores = six_seeds
    rows = rows_of(only_group(paths))
    assert rows["fedavg"].tests == {}
    p_values = {}
    for method in ("fedprox", "fedali"):
        by_seed = (scores[method] - scores["fedavg"]).mean(axis=1)
        by_client = (scores[method] - scores["fedavg"]).mean(axis=0)
        test = rows[method].tests["personalization.macro_f1"]
        assert test.by_seed == pytest.approx(by_seed)
        assert test.difference == pytest.approx(by_seed.mean())
        p_values[method] = stats.ttest_rel(scores[method].mean(axis=1), scores["fedavg"].mean(axis=1)).pvalue
        assert test.p == pytest.approx(p_values[method])
        half = stats.t.ppf(0.975, SEEDS - 1) * by_seed.std(ddof=1) / math.sqrt(SEEDS)
        assert (test.low, test.high) == pytest.approx((by_seed.mean() - half, by_seed.mean() + half))
        assert test.seeds == tuple(range(SEEDS))
        assert test.spread == pytest.approx((by_client.std(), (by_client > 0).sum(), 0, (by_client < 0).sum()))
    small, large = sorted(p_values.values())
    adjusted = sorted(rows[method].tests["personalization.macro_f1"].p_holm or 0 for method in p_values)
    assert adjusted == pytest.approx([min(1, 2 * small), min(1, max(2 * small, large))])


def test_more_clients_make_no_evidence_of_one_seed(tmp_path: Path) -> None:
    """A gain of 3 points on each of 300 clients, one seed: Wilcoxon over clients would say p < 0.001."""
    random = np.random.default_rng(0)
    paths = [write_run(tmp_path / method, method=method, clients=300) for method in ("fedavg", "fedali")]
    base = random.uniform(0.6, 0.8, 300)
    give_scores(paths[0], base.tolist())
    give_scores(paths[1], (base + random.normal(0.03, 0.005, 300)).tolist())
    group = only_group(paths)
    test = rows_of(group)["fedali"].tests["personalization.macro_f1"]
    assert test.difference == pytest.approx(0.03, abs=0.001)
    assert (test.low, test.high, test.p, test.p_signs, test.p_holm) == (None,) * 5
    assert (test.spread.better, test.spread.worse) == (300, 0)
    assert any("fedali: one seed in common with the baseline" in warning for warning in group.warnings)
    assert any("a single seed is no evidence" in warning for warning in group.warnings)
    text = markdown(page_of(compared(paths)))
    assert "(one seed, no evidence; clients ± 0." in text
    assert "**+" not in text, "nothing is bold"


def test_few_seeds_say_that_the_signs_cannot_be_small(tmp_path: Path) -> None:
    paths = []
    for method, seed in itertools.product(("fedavg", "fedali"), range(3)):
        paths.append(write_run(tmp_path / f"{method}{seed}", method=method, seed=seed))
        gain = 0.03 + 0.001 * seed if method == "fedali" else 0.0
        give_scores(paths[-1], (np.linspace(0.6, 0.8, 24) + gain).tolist())
    text = markdown(page_of(compared(paths)))
    # t = 0.031 / (0.001 / √3) = 53.7 with two degrees of freedom
    assert "signs 0.250, the least; clients ± 0.00, 24 ↑ 0 = 0 ↓" in text
    assert "**+3.10 \\[+2.85, +3.35]**" in text
    console = Console(width=80, record=True, file=io.StringIO())
    print_comparison(compared(paths), console)
    printed = console.export_text()
    assert "+3.10 [+2.85, +3.35]" in printed
    assert "signs 0.250, the least" in printed
    assert "24 ↑ 0 = 0 ↓" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_baseline_can_be_chosen(six_seeds: tuple[list[Path], dict[str, Array]]) -> None:
    paths, _ = six_seeds
    rows = rows_of(only_group(paths, "fedali"))
    assert [rows[name].baseline for name in ("fedavg", "fedprox", "fedali")] == ["fedali", "fedali", None]


def test_an_unknown_baseline_is_said(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, method=name) for name in ("fedavg", "fedprox")]
    with pytest.raises(SettingsError, match=r"--baseline 'fedalli' is neither a method nor a row .*fedavg, fedprox"):
        only_group(paths, "fedalli")


TASK = {"classes": 6, "epochs": 5, "batch_size": 64, "optimizer": "adam", "seed": 0}


def test_each_learning_rate_has_its_own_baseline(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / f"{method}{lr}", method=method, config={"training": TASK | {"lr": lr}})
        for method in ("fedavg", "fedprox")
        for lr in (0.1, 0.01)
    ]
    rows = rows_of(only_group(paths))
    assert {label: row.baseline for label, row in rows.items()} == {
        "fedavg (lr=0.1)": None,
        "fedavg (lr=0.01)": None,
        "fedprox (lr=0.1)": "fedavg (lr=0.1)",
        "fedprox (lr=0.01)": "fedavg (lr=0.01)",
    }
    named = rows_of(only_group(paths, "fedavg (lr=0.1)"))
    assert named["fedprox (lr=0.01)"].baseline == "fedavg (lr=0.1)"


def test_each_network_has_its_own_baseline(tmp_path: Path) -> None:
    runs = [("fedavg", "har_cnn"), ("fedavg", "har_cnn_alp"), ("fedprox", "har_cnn"), ("fedali", "har_cnn_alp")]
    paths = [write_run(tmp_path / f"{method}-{model}", method=method, model=model) for method, model in runs]
    group = only_group(paths, "fedavg")
    assert not any("not tested" in warning for warning in group.warnings)
    rows = {(row.method, row.model): row for row in group.rows}
    assert rows["fedprox", "har_cnn"].tests
    assert rows["fedali", "har_cnn_alp"].tests


def test_equally_near_baselines_are_not_guessed_between(tmp_path: Path) -> None:
    weightings = [{"method": {"name": "fedavg", "weighting": weighting}} for weighting in ("examples", "uniform")]
    paths = [write_run(tmp_path / str(k), config=config) for k, config in enumerate(weightings)]
    group = only_group([*paths, write_run(tmp_path / "x", method="fedprox")])
    assert rows_of(group)["fedprox"].baseline is None
    assert any("fedprox is not tested" in warning and "name one by --baseline" in warning for warning in group.warnings)


def test_the_server_model_is_tested_on_each_client(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", global_score=0.5),
        write_run(tmp_path / "b", method="fedprox", global_score=0.6),
        write_run(tmp_path / "c", method="local", global_score=None),
    ]
    rows = rows_of(only_group(paths))
    assert rows["fedprox"].tests["global_per_client.macro_f1"].difference == pytest.approx(0.1)
    assert "global_per_client.macro_f1" not in rows["local"].tests
    assert "personalization.macro_f1" in rows["local"].tests


# ---- rows


def test_the_worst_tenth_is_by_hand(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    give_scores(path, [k / 100 for k in range(70, 94)])
    score = rows_of(only_group([path]))["fedavg"].scores["worst.macro_f1"]
    assert score is not None
    assert score.mean == pytest.approx((0.70 + 0.71) / 2)


def test_traffic_counts_all_clients_and_not_the_lost_ones_upload(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", clients=5, rounds=3)
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"bytes_up": 10, "bytes_down": 100}
    lines[1]["lost"] = ["2", "3"]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = rows_of(only_group([path]))["fedavg"].curves["personalization"]
    assert curve.moved_bytes == (550, 550 + 530, 550 + 530 + 550)


def test_a_method_that_pools_data_is_a_reference(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", global_score=0.7),
        write_run(tmp_path / "b", method="fedprox", global_score=0.8),
        write_run(tmp_path / "c", method="centralized", global_score=0.99),
    ]
    _as_pooled(paths[2])
    group = only_group(paths)
    rows = rows_of(group)
    assert group.refused == (), "the client that pools all data has no test examples that could differ"
    assert [rows[name].ranks["global.macro_f1"] for name in ("fedavg", "fedprox", "centralized")] == [2, 1, 0]
    assert rows["centralized"].scores["personalization.macro_f1"] is None
    text = markdown(page_of(compared(paths)))
    assert re.search(r"centralized\\\*.* \| – \| – \| 1 min", text), "what it moves is not a federation's traffic"
    assert set(rows["centralized"].tests) == {"global_per_client.macro_f1", "global_per_client.accuracy"}


def _as_pooled(path: Path) -> None:
    """Make a run one that pools all data: a client that only trains, and no client with a model of its own."""
    nobody = {"personalization": None, "generalization": None}
    summary = json.loads((path / "summary.json").read_text()) | nobody
    summary["last"] |= nobody
    (path / "summary.json").write_text(json.dumps(summary))
    counts = json.loads((path / "clients.json").read_text())
    counts["everyone"] = {"train": 9, "test": 0, "train_per_class": [9] + [0] * 5, "test_per_class": [0] * 6}
    (path / "clients.json").write_text(json.dumps(counts))
    scores = json.loads((path / "client_scores.json").read_text())
    alone = {name: entry | nobody | {"last": entry["last"] | nobody} for name, entry in scores.items()}
    (path / "client_scores.json").write_text(json.dumps(alone))


def test_new_clients_have_columns_where_they_were_held_out(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / method, method=method) for method in ("fedavg", "fedprox")]
    for path, score in zip(paths, (0.5, 0.6), strict=True):
        summary = json.loads((path / "summary.json").read_text())
        shots = {"0": spread(score), "5": spread(score + 0.1), "10": None}
        summary["new_clients"] = {"clients": ["x"], "epochs": 20, "shots": shots, "client_models": None}
        (path / "summary.json").write_text(json.dumps(summary))
    comparison = compared(paths)
    rows = rows_of(comparison.groups[0])
    assert rows["fedprox"].scores["new_clients_5.macro_f1"] == ComparedScore(pytest.approx(0.7), 0.05)
    assert rows["fedprox"].ranks["new_clients_5.macro_f1"] == 1
    assert rows["fedprox"].scores["new_clients_10.macro_f1"] is None
    assert "| new users, k = 5 F1 |" in markdown(page_of(comparison))


# ---- data sets


@pytest.fixture
def three_datasets(tmp_path: Path) -> list[Path]:
    scores = {
        "fedavg": (0.80, 0.82, 0.60),
        "fedprox": (0.81, 0.83, 0.61),
        "fedali": (0.90, 0.85, 0.59),
        "local": (0.5,) * 3,
    }
    return [
        write_run(tmp_path / f"{method}-{data}", method=method, personalization=score, config={"dataset": data})
        for method, values in scores.items()
        for data, score in zip(("motionsense", "ucihar", "spsw"), values, strict=True)
    ]


def test_methods_are_ranked_over_three_data_sets(three_datasets: list[Path]) -> None:
    over = compared(three_datasets).over_datasets[0]
    assert over.column == "personalization.macro_f1"
    assert over.datasets == ("motionsense", "ucihar", "spsw")
    assert over.ranking.ranks == pytest.approx({"fedavg": 8 / 3, "fedprox": 5 / 3, "fedali": 5 / 3, "local": 4.0})
    assert over.ranking.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / 18), abs=2e-3)


def test_two_data_sets_are_not_ranked(three_datasets: list[Path]) -> None:
    assert compared([path for path in three_datasets if "spsw" not in path.name]).over_datasets == ()


# ---- what is written


def test_all_forms_show_the_tests_and_the_ranks(three_datasets: list[Path], tmp_path: Path) -> None:
    compare(three_datasets, tmp_path / "out")
    text = (tmp_path / "out/comparison.md").read_text()
    assert "Against the baseline, seed by seed" in text
    assert "one seed, no evidence; clients ± " in text
    assert "Friedman's χ² = " in text
    html = (tmp_path / "out/comparison.html").read_text()
    assert "Against the baseline" in html
    assert html.count("<img") == 3 * 3 + 3
    read: dict[str, Any] = json.loads((tmp_path / "out/comparison.json").read_text())
    assert read["over_datasets"][0]["ranking"][2] > 0
    row = next(row for row in read["groups"][0]["rows"] if row["method"] == "fedali")
    found = row["tests"]["personalization.macro_f1"]
    assert [found[key] for key in ("low", "high", "p", "p_signs", "p_holm")] == [None] * 5, "one seed is no evidence"
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert {"curves-ucihar-har_cnn.png", "bytes-ucihar-har_cnn.png", "differences-ucihar-har_cnn.png"} <= names
    assert "ranks-har_cnn-personalization-macro_f1.png" in names


def test_a_sweeps_folder_stands_for_its_runs(tmp_path: Path) -> None:
    names = ("fedavg", "fedprox", "later")
    for name in names[:2]:
        write_run(tmp_path / "sweep" / name, method=name)
    SweepRecord(tmp_path / "sweep", [Cell(name, {}, ()) for name in names]).write()
    (group,) = compare([tmp_path / "sweep"], tmp_path / "out").groups
    assert [row.label for row in group.rows] == ["fedavg", "fedprox"]
    with pytest.raises(RunDirectoryError, match=r"has no config\.json"):
        compare([tmp_path], tmp_path / "out")


def test_nineteen_rows_can_be_told_apart(tmp_path: Path) -> None:
    names = [f"method-{k}" for k in range(19)]
    paths = [write_run(tmp_path / name, method=name, personalization=0.7 + 0.01 * k) for k, name in enumerate(names)]
    group = only_group(paths, "method-0")
    figure = over_bytes(group)
    assert figure is not None
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 19
    assert draw({"differences": differences(group)}, tmp_path)
