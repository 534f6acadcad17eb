"""Several runs on one page: means and spreads by method, moving averages, weights, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sim.cli.app import app
from sim.errors import AnalysisError
from sim.reports.analysis.analyse import by_method, smoothed, together
from sim.reports.analysis.attention import client_weights, final_weights, weights_figure
from sim.results.run_directory import RunDirectory
from tests.sim.example_run import write_run
from tests.sim.reports.analysis.conftest import Finished


def straggling(folder: Path, name: str, delta: float, loss: float, **config: Any) -> RunDirectory:
    """A run whose server's loss is `loss` in all rounds, and whose other measures are as in every example."""
    path = write_run(folder / f"{name}-{delta}-{len(list(folder.iterdir()))}", clients=4, rounds=10, method=name)
    settings = json.loads((path / "config.json").read_text()) | {"stragglers": delta, **config}
    (path / "config.json").write_text(json.dumps(settings))
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        record["analyses"]["server_loss"] = loss
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunDirectory(path)


def test_the_mean_and_the_papers_deviation_over_the_shares_of_stragglers(tmp_path: Path) -> None:
    """As table 3 of Michieli and Ozay 2021 has them: 92.7, 88.7 and 85.1 are 88.8 ± 3.8."""
    deltas = {0.0: 0.927, 0.5: 0.887, 0.8: 0.851}
    runs = [straggling(tmp_path, "fedavg", delta, loss) for delta, loss in deltas.items()]
    (table,) = together(runs, {}).tables
    row = dict(zip(table.head, (cell.text for cell in table.rows[0]), strict=True))
    assert (row[""], row["runs"], row["training loss of the server's model"]) == ("fedavg", "3", "0.8883 ± 0.038")


def test_ffd_is_that_of_the_mean_discrepancies(tmp_path: Path) -> None:
    runs = [straggling(tmp_path, method, 0.0, 1.0) for method in ("fedavg", "fedprox")]
    section = together(runs, {str(runs[0].path): {10: 0.4}, str(runs[1].path): {10: 0.3}})
    (table,) = section.tables
    assert [row[-1].text for row in table.rows] == ["0.0 %", "25.0 %"]
    assert set(section.figures) == {
        *("accuracy", "server_loss", "gradient_dissimilarity", "aggregate_margin", "mmd", "weights"),
    }


def test_runs_of_a_method_that_differ_in_more_are_apart(tmp_path: Path) -> None:
    runs = [
        straggling(tmp_path, "fedavg", delta, 1.0, method={"name": "fedavg", "weighting": weighting})
        for weighting in ("examples", "uniform")
        for delta in (0.0, 0.8)
    ]
    assert {name: len(own) for name, own in by_method([*runs, straggling(tmp_path, "fedatt", 0.0, 1.0)]).items()} == {
        "fedavg, weighting=examples": 2,
        "fedavg, weighting=uniform": 2,
        "fedatt": 1,
    }


def test_lines_are_moving_averages_over_a_tenth_of_the_rounds() -> None:
    assert smoothed({10: 1.0, 20: 3.0, 30: 8.0}, 20) == [1.0, 2.0, 5.5]
    assert smoothed({1: 1.0, 2: 3.0}, 0.2) == [1.0, 3.0]


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"not finished: .*half"):
        together([RunDirectory(write_run(tmp_path / "half", finished=False))], {})


# ---- weights


def test_fedavgs_weights_are_the_shares_of_examples_of_who_was_used(tmp_path: Path) -> None:
    run = RunDirectory(write_run(tmp_path / "run", clients=3, rounds=2, method="fedavg"))
    names, sizes = list(run.clients), [client.train for client in run.clients.values()]
    expected = dict(zip(names, np.array(sizes) / sum(sizes), strict=True))
    assert client_weights(run) == {"mean": {1: pytest.approx(expected), 2: pytest.approx(expected)}}
    records = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    records[0] |= {"lost": names[:1], "capped": {names[1]: 10}}
    records[1] |= {"failed": "too few updates"}
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    share = 10 / (10 + sizes[2])
    found = client_weights(RunDirectory(run.path))["mean"]
    assert list(found) == [1]
    assert found[1] == {names[1]: pytest.approx(share), names[2]: pytest.approx(1 - share)}


def test_fedprotos_weights_are_those_that_it_averaged_by(finished: Finished) -> None:
    kinds = client_weights(finished("fedproto_margin").directory)
    assert list(kinds) == ["examples", "lpm", "apm", "combined"]
    assert final_weights(kinds) == [kinds["examples"][1], kinds["combined"][2]]


def test_the_distribution_of_weights_is_drawn_by_method() -> None:
    figure = weights_figure({"fedavg": [{"ada": 0.8, "bob": 0.2}] * 2, "fedatt": [{"ada": 0.5, "bob": 0.5}]})
    for patch in figure.axes[0].patches:
        assert sum(patch.get_data().values) == pytest.approx(100)
    assert figure.axes[0].get_lines()[0].get_xdata()[0] == 0.5, "an equal share"


@pytest.mark.ci
def test_the_command_draws_methods_together(finished: Finished, cache: Path, tmp_path: Path) -> None:
    runs = [finished(name, analyses="michieli").directory.path for name in ("fedavg", "fedprox")]
    words = ["--centralized", finished("centralized").directory.path, "--cache", cache, "--together", tmp_path / "out"]
    done = CliRunner().invoke(app, ["analyse", *map(str, [*runs, *words])])
    assert done.exit_code == 0, done.output
    drawn = {path.name for path in (tmp_path / "out").glob("together_*.png")}
    assert {"together_server_loss.png", "together_mmd.png", "together_weights.png"} <= drawn
    assert "FFD from fedavg" in (tmp_path / "out" / "analysis.html").read_text()
