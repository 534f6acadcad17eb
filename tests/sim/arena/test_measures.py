"""What a table reads from a run's directory, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.arena.measures import MEASURES
from sim.results.run_directory import RunDirectory
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
