"""Sweeps: which cells there are and what they are called; failures, kills and repeats with real processes."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation.methods import METHODS
from sim.cli import app
from sim.errors import RunDirectoryError, SettingsError
from sim.sweep import processes
from sim.sweep.grid import MAX_NAME, Cell, axis, cells, condition
from sim.sweep.processes import CellPhase, CellStatus, open_sweep, run_cells, run_directories, saved_cells

FLAGS = {name: f"--{name.replace('_', '-')}" for name in ("method", "model", "seed", "lr", "clients_per_round", "data")}


def made(*over: str, when: Sequence[str] = (), base: Sequence[str] = ()) -> list[Cell]:
    return cells([axis(text) for text in over], [condition(text) for text in when], base, FLAGS)


# ---- the grid


def test_every_combination_the_first_axis_slowest() -> None:
    names = [cell.name for cell in made("method=fedavg,local", "seed=0,1,2")]
    assert names == [f"{method},seed={seed}" for method in ("fedavg", "local") for seed in (0, 1, 2)]


def test_arguments_begin_with_the_common_ones() -> None:
    (cell,) = made("clients-per-round=5", "method.mu=0.1", base=["--rounds", "3"])
    assert cell.arguments == ("--rounds", "3", "--clients-per-round", "5", "--set", "method.mu=0.1")
    assert cell.name == "clients_per_round=5,mu=0.1"


def test_a_condition_adds_to_some_cells_only() -> None:
    found = made(
        "method=fedavg,fedali,fedprox", when=["method=fedali:model=har_cnn_alp", "method=fedprox:method.mu=0.1,1"]
    )
    assert [cell.name for cell in found] == ["fedavg", "fedali,har_cnn_alp", "fedprox,mu=0.1", "fedprox,mu=1"]
    assert "--model" not in found[0].arguments


def test_a_condition_may_rest_on_another_ones_axis() -> None:
    found = made("method=fedavg,fedali", when=["method=fedali:model=har_cnn_alp,hart_alp", "model=hart_alp:lr=1e-4"])
    assert [cell.name for cell in found] == ["fedavg", "fedali,har_cnn_alp", "fedali,hart_alp,lr=1e-4"]


def test_a_value_may_hold_commas_in_brackets() -> None:
    assert axis('model.channels=[16,32],[32,64],"a,b"').values == ("[16,32]", "[32,64]", '"a,b"')


def test_names_fit_a_directory_and_stay_apart() -> None:
    assert [cell.name for cell in made("data.root=/a b,x")] == ["data.root=-a-b", "data.root=x"]
    alike = [cell.name for cell in made("data.root=/a,-a")]
    assert len(set(alike)) == 2
    assert all(re.fullmatch(r"data\.root=-a-[0-9a-f]{8}", name) for name in alike)
    (long,) = made(f"data.root={'x' * 300}")
    assert len(long.name) == MAX_NAME + 9
    (hidden,) = made("data=../../etc")
    assert hidden.name == "etc"


@pytest.mark.parametrize(
    ("over", "when", "why"),
    [
        (["seed"], [], "expected key=value"),
        (["seed="], [], "expected key=value"),
        (["seed=1,1"], [], "has 1 twice"),
        (["sede=1"], [], "did you mean seed?"),
        (["mu=1"], [], "a method's hyper-parameter is method.KEY"),
        (["seed=1", "seed=2"], [], "seed is set twice"),
        (["method=a", "model=b"], ["method=a:model=c"], "model is set twice"),
        (["method=a"], ["method=b:model=c"], "no cell has method=b; the sweep goes over a"),
        (["method=a"], ["seed=0:model=c"], "sweep over it: --over seed="),
        (["method=a"], ["method=a model=c"], "expected CONDITION:OPTION"),
        ([f"seed={','.join(map(str, range(200)))}", f"lr={','.join(map(str, range(1, 200)))}"], [], "more than 10000"),
    ],
)
def test_slips_are_explained(over: list[str], when: list[str], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        made(*over, when=when)


# ---- the record


def parse(arguments: Sequence[str]) -> dict[str, str]:
    return {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(*[iter(arguments)] * 2, strict=True)
    }


def test_a_sweep_may_grow_but_not_change(tmp_path: Path) -> None:
    open_sweep(tmp_path, made("seed=0,1", base=["--rounds", "3"]), parse).write()
    grown = open_sweep(tmp_path, made("seed=1,2", base=["--rounds", "3", "--threads", "4"]), parse)
    grown.write()
    assert [cell.name for cell in saved_cells(tmp_path)] == ["seed=0", "seed=1", "seed=2"]
    with pytest.raises(RunDirectoryError, match=r"cell seed=2 has rounds = '3', this one '5'; choose another --out"):
        open_sweep(tmp_path, made("seed=2", base=["--rounds", "5"]), parse)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"sweep\.json is damaged"):
        saved_cells(tmp_path)


def test_only_begun_runs_are_handed_on(tmp_path: Path) -> None:
    open_sweep(tmp_path, made("seed=0,1"), parse).write()
    (tmp_path / "seed=1").mkdir()
    (tmp_path / "seed=1/config.json").write_text("{}")
    assert run_directories(tmp_path) == [tmp_path / "seed=1"]


# ---- processes, with a short program in the place of `sim run`

PROGRAM = """
import json, pathlib, sys, time
folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
folder.mkdir(parents=True, exist_ok=True)
(folder / "new").write_text(json.dumps({"rounds": {"rounds": 2}}))
(folder / "new").rename(folder / "config.json")  # as a run writes it: whole, or not there
(folder / "rounds.jsonl").write_text("{}\\n{}\\n")
if kind == "fail":
    print("begun"); print("error: no such data"); sys.exit(2)
while kind == "hang" and not (folder / "go").exists():
    time.sleep(0.02)
(folder / "runs").open("a").write("x")
for name in ("summary.json", "report.html"):
    (folder / name).write_text("{}")
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(cell: Cell, folder: Path) -> list[str]:
        return ["-c", PROGRAM, str(folder / cell.name), cell.options["kind"]]

    monkeypatch.setattr(processes, "command", command)
    monkeypatch.setattr(processes, "skipped", lambda *_: CellStatus(CellPhase.SKIPPED))
    monkeypatch.setattr(processes, "POLL_S", 0.01)


def cell(name: str, kind: str = "work") -> Cell:
    return Cell(name, {"kind": kind}, ())


def last_standings(found: Sequence[tuple[Cell, CellStatus]]) -> dict[str, CellStatus]:
    return {each.name: status for each, status in found}


@pytest.mark.usefixtures("programs")
def test_one_failure_does_not_end_the_others(tmp_path: Path) -> None:
    found = last_standings(list(run_cells([cell("a"), cell("b", "fail"), cell("c")], tmp_path, 2)))
    assert {name: status.phase for name, status in found.items()} == {
        "a": CellPhase.FINISHED,
        "b": CellPhase.FAILED,
        "c": CellPhase.FINISHED,
    }
    assert found["b"].reason == "error: no such data"
    assert (found["a"].rounds, found["a"].of) == (2, 2)


@pytest.mark.usefixtures("programs")
def test_finished_cells_are_skipped_and_failed_ones_tried_again(tmp_path: Path) -> None:
    list(run_cells([cell("a"), cell("b", "fail")], tmp_path, 1))
    found = last_standings(list(run_cells([cell("a"), cell("b")], tmp_path, 1)))
    assert [found[name].phase for name in "ab"] == [CellPhase.SKIPPED, CellPhase.FINISHED]
    assert (tmp_path / "a/runs").read_text() == "x"


@pytest.mark.usefixtures("programs")
def test_leaving_ends_the_runs(tmp_path: Path) -> None:
    changes = run_cells([cell("a", "hang")], tmp_path, 1)
    next(changes)
    with (tmp_path / "logs/a.log").open("ab") as log, pytest.raises(BlockingIOError):
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    changes.close()
    with (tmp_path / "logs/a.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (tmp_path / "a/summary.json").exists()


@pytest.mark.usefixtures("programs")
def test_a_run_that_another_sweep_left_is_waited_for(tmp_path: Path) -> None:
    first, second = (run_cells([cell("a", "hang")], tmp_path, 1) for _ in range(2))
    next(first)
    _, status = next(second)
    assert status.reason == "a run that an earlier sweep left is at work"
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a/go").touch()
    assert last_standings(list(second))["a"].phase is CellPhase.SKIPPED
    assert last_standings(list(first))["a"].phase is CellPhase.FINISHED
    assert (tmp_path / "a/runs").read_text() == "x", "one run, although two sweeps wanted it"


def test_a_signal_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(processes, "command", lambda *_: ["-c", kill])
    found = last_standings(list(run_cells([cell("a")], tmp_path, 1)))
    assert found["a"].reason == "ended by SIGKILL: was the memory short?"


# ---- the command, with real runs

SMALL = "--preset synthetic-smoke --model har_cnn --method fedavg --set data.minutes=1.5 --set data.phones=1"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app.app, ["sweep", *words])
    return result.exit_code, result.output


def test_a_dry_run_prints_commands_that_can_be_pasted(tmp_path: Path) -> None:
    code, output = invoke("--out", str(tmp_path / "x y"), "--over", "method=all", "--dry-run", "--", "--rounds", "2")
    assert code == 0
    lines = output.splitlines()
    assert shlex.split(lines[0])[:6] == ["python", "-m", "sim", "run", "--rounds", "2"]
    assert shlex.split(lines[0])[-2:] == ["--out", str(tmp_path / "x y/local")]
    assert len(lines) == len(METHODS)
    assert not (tmp_path / "x y").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--over", "lr=1,x"], "Invalid value for '--lr'"),
        (["--over", "seed=1", "--", "--seed", "2"], "seed is both swept over and given after"),
        (["--over", "out=a,b"], "has no option 'out'"),
        (["--over", "seed=1", "--", "--bogus", "2"], "No such option"),
    ],
)
def test_a_slip_is_found_before_the_first_run(words: list[str], why: str, tmp_path: Path) -> None:
    code, output = invoke("--out", str(tmp_path / "out"), *words)
    assert code == 2
    assert why in output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    common = [*shlex.split(SMALL), "--rounds", "12", "--cache", str(tmp_path / "cache"), "--checkpoint-every", "0.01"]
    whole = [*common, "--seed", "1", "--out", str(tmp_path / "whole")]
    assert CliRunner().invoke(app.app, ["run", *whole]).exit_code == 0
    killed = tmp_path / "killed"
    lines = [killed / name / "rounds.jsonl" for name in ("seed=0", "seed=1")]
    words = ["sweep", "--out", str(killed), "--over", "seed=0,1", "--jobs", "2", "--", *common]
    program = [sys.executable, "-m", "sim", *words]
    for ended_by in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before, until = line_counts(lines), time.monotonic() + 600
        while not any(now > then for now, then in zip(line_counts(lines), before, strict=True)):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(ended_by)
        assert process.wait(600) != 0
    assert any(not processes.is_finished(line.parent) for line in lines), "killed too late to prove anything"
    assert subprocess.run(program, check=False, capture_output=True).returncode == 0
    scores = [json.loads((path / "client_scores.json").read_text()) for path in (killed / "seed=1", tmp_path / "whole")]
    assert scores[0] == scores[1]
    assert {cell.phase for cell in saved_cells(killed)} <= {CellPhase.FINISHED, CellPhase.SKIPPED}
    assert (killed / "comparison/comparison.html").is_file()


def line_counts(files: Sequence[Path]) -> list[int]:
    return [file.read_text().count("\n") if file.exists() else 0 for file in files]


def test_a_finished_cell_whose_data_or_code_has_changed_is_refused_and_not_compared(tmp_path: Path) -> None:
    common = [*shlex.split(SMALL), "--rounds", "1", "--no-figures", "--cache", str(tmp_path / "cache")]
    for seed in ("0", "1", "2"):
        run = ["run", *common, "--seed", seed, "--out", str(tmp_path / f"out/seed={seed}")]
        assert CliRunner().invoke(app.app, run).exit_code == 0
    for seed, changes in (("1", {"data_sha256": "0" * 64}), ("2", {"code": {"models.har_cnn.HarCnn": "0" * 64}})):
        path = tmp_path / f"out/seed={seed}/config.json"
        config = json.loads(path.read_text())
        assert changes["code"].keys() <= config["code"].keys() if "code" in changes else config["data_sha256"]
        path.write_text(json.dumps(config | changes))
    code, output = invoke("--out", str(tmp_path / "out"), "--over", "seed=0,1,2", "--", *common)
    assert code == 1, output
    assert "skipped seed=0" in output
    assert "seed=1 holds a run on other data: since it began, the recordings have changed" in output
    assert "seed=2 holds a run that began before the code of models.har_cnn.HarCnn was edited" in output
    compared = json.loads((tmp_path / "out/comparison/comparison.json").read_text())
    assert "seed=1" not in json.dumps(compared)
    words = ("--cache", "a", "--data-root=b", "--data-root", "c")
    assert [processes.option_value(words, option) for option in ("--data-root", "--out")] == [Path("c"), None]


@pytest.mark.slow
def test_a_failed_cell_is_listed_and_the_exit_code_says_so(tmp_path: Path) -> None:
    words = ["--cache", str(tmp_path / "cache"), "--rounds", "1", *shlex.split(SMALL)]
    code, output = invoke("--out", str(tmp_path / "out"), "--over", "normalization=federated,whole", "--", *words)
    assert code == 1
    assert "1 of 2 cells failed" in output
    assert "normalization=whole: error: data.normalization: expected" in output
    assert (tmp_path / "out/comparison/comparison.md").is_file()
