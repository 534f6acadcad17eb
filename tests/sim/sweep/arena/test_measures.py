"""What a table reads from a run's directory, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.results.run_directory import RunDirectory
from sim.sweep.arena.cells import read_declaration
from sim.sweep.arena.measures import MEASURES
from tests.repository.imports import REPOSITORY
from tests.sim.example_run import spread, write_run


def run_with(path: Path, accuracies: list[float | None], score: str = "global") -> RunDirectory:
    """Return a run of so many rounds with these accuracies; None: that round was not evaluated."""
    directory = write_run(path, clients=2, rounds=len(accuracies))
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for line, accuracy in zip(lines, accuracies, strict=True):
        line |= {"evaluated": accuracy is not None, "personalization": None, "global": None}
        if accuracy is not None:
            line[score] = spread(accuracy - 0.01) if score == "personalization" else {"accuracy": accuracy}
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunDirectory(directory)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        pytest.param([0.1] * 5 + [0.8] * 5 + [0.9] * 5, 0.85, id="the first five do not count"),
        pytest.param([None] * 5 + [0.8] * 5 + [0.9] * 5, 0.85, id="nor need they be evaluated"),
        pytest.param([0.9] * 12 + [None] + [0.9] * 2, None, id="one of the last ten was not evaluated"),
        pytest.param([0.9] * 9, None, id="there are not ten"),
    ],
)
def test_the_mean_of_the_last_ten_rounds_needs_each_of_them(
    accuracies: list[Any], expected: float | None, tmp_path: Path
) -> None:
    found = MEASURES["server_accuracy_last_ten"].read(run_with(tmp_path / "run", accuracies))
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        pytest.param([0.5, 0.891, 0.896, 0.9, 0.88], 3.0, id="within half a point of 0.9"),
        pytest.param([None, 0.9, None, 0.904], 2.0, id="among the rounds that were evaluated"),
        pytest.param([None] * 3, None, id="none was"),
    ],
)
def test_a_run_converges_in_the_first_round_near_its_best(
    accuracies: list[Any], expected: float | None, tmp_path: Path
) -> None:
    assert MEASURES["convergence_round"].read(run_with(tmp_path / "run", accuracies, "personalization")) == expected


def test_numbers_are_those_of_all_clients_in_a_round(tmp_path: Path) -> None:
    """Tan et al.'s table 1: 20 clients of 4 classes with 50 numbers each send 4,000; a lost one has sent nothing."""
    run = run_with(tmp_path / "run", [0.5, 0.5])
    assert MEASURES["numbers_k"].read(run) is None, "an earlier version did not count them"
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    cohort = [f"{k}" for k in range(20)]
    text = [
        {**line, "cohort": cohort, "lost": lost, "numbers_up": 200.0}
        for line, lost in zip(lines, ([], ["3"]), strict=True)
    ]
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    assert MEASURES["numbers_k"].read(RunDirectory(run.path)) == pytest.approx((4.0 + 3.8) / 2)


def test_the_distance_between_prototypes_is_the_last_rounds(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [0.5, 0.5])
    assert MEASURES["prototype_distance"].read(run) is None, "fedavg has none"
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    text = [{**line, "diagnostics": {"prototype_distance": line["round"] / 10}} for line in lines]
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    assert MEASURES["prototype_distance"].read(RunDirectory(run.path)) == 0.2


def test_tans_figure_4_has_a_table_that_records_what_it_draws() -> None:
    table = read_declaration(REPOSITORY / "experiments/tan_lambda.toml")
    assert {"own_accuracy", "prototype_distance"} <= set(MEASURES)
    assert "tan2022-femnist-3" in {options["preset"] for options in table.sets.values()}
    pulls = sorted({float(str(arm.options["method.lam"])) for arm in table.arms.values()})
    assert (pulls[0], pulls[-1]) == (0, 4)
    assert 1 in pulls
