"""Cells on a Ray cluster: what comes back is what a run here writes, and a cell that fails says why."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.sweep.grid import Cell
from sim.sweep.on_ray import packed_arguments, run_anywhere, run_elsewhere, run_on_ray
from sim.sweep.processes import CellPhase, CellStatus, log_path, run_cells
from tests.sim.local_ray import local_cluster, ray

pytestmark = [
    pytest.mark.ci,
    pytest.mark.service,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]
SMALL = ("--data", "synthetic", "--model", "har_features", "--rounds", "1", "--method")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster():
        yield


def cell(name: str, *words: str) -> Cell:
    return Cell(name, {}, (*SMALL, *words))


def played(cells: list[Cell], folder: Path) -> dict[str, CellStatus]:
    return {each.name: status for each, status in run_on_ray(cells, folder)}


def test_a_cell_comes_back_whole_and_one_that_fails_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = cell("good", "analytic", "--cache", "windows")
    Path("runs/good").mkdir(parents=True)
    Path("runs/good/config.json").write_text("{}")  # of a run here that was killed
    found = played([good, cell("bad", "nobody")], Path("runs"))
    assert (found["good"].phase, found["bad"].phase) == (CellPhase.FINISHED, CellPhase.FAILED)
    assert "nobody" in found["bad"].reason
    assert not Path("runs/bad").exists()
    assert played([good], Path("runs"))["good"].phase is CellPhase.SKIPPED
    list(run_cells([good], Path("here"), 1))
    one, other = (json.loads((folder / "good/summary.json").read_bytes()) for folder in (Path("runs"), Path("here")))
    for changing in ("seconds", "cpu_seconds"):
        one.pop(changing, None), other.pop(changing, None)
    assert one == other


AT_WORK = """
import fcntl, sys
with open(sys.argv[1], "ab") as log:
    fcntl.flock(log, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_cell_at_which_a_run_here_is_at_work_is_left_to_it(tmp_path: Path) -> None:
    one, unfinished = cell("one", "analytic", "--cache", str(tmp_path / "windows")), tmp_path / "one/of_the_run_here"
    for folder in (tmp_path / "logs", unfinished.parent):
        folder.mkdir()
    unfinished.touch()
    here = [sys.executable, "-c", AT_WORK, str(log_path(one, tmp_path))]
    phases = []
    with subprocess.Popen(here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "locked\n"
        for _, status in run_on_ray([one], tmp_path):
            phases.append(status.phase)
            run.stdin.close()  # the run here ends without having finished the cell
    assert (phases[0], phases[-1]) == (CellPhase.RUNNING, CellPhase.FINISHED)
    assert unfinished.exists(), "the cluster's run replaced the directory of a run that was at work in it"


def test_weights_go_along_to_a_host_that_lacks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = ("--data", "synthetic", "--model", "har_cnn", "--rounds", "1", "--method", "fedavg", "--cache", "windows")
    list(run_cells([Cell("first", {}, network)], Path("runs"), 1))
    words, files = packed_arguments((*network, "--init", "runs/first"))
    shutil.rmtree("runs/first")
    monkeypatch.chdir("/")
    found = run_elsewhere("second", words, tuple(files), *files.values())
    assert found.code == 0, found.log.decode()
    with zipfile.ZipFile(io.BytesIO(found.directory)) as archive:
        assert json.loads(archive.read("config.json"))["init"]["path"].endswith("global.safetensors")


def test_weights_that_many_runs_start_from_are_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"none")
    put, stored = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: stored.append(value) or put(value))
    found = played([cell(str(seed), "analytic", "--init", str(weights)) for seed in (0, 1)], tmp_path / "runs")
    assert [file.content for file in stored] == [b"none"]
    for status in found.values():  # both were reached by the file, which is none of weights
        assert status.phase is CellPhase.FAILED
        assert "weights.safetensors" in status.reason


def test_the_address_of_a_cluster_is_what_chooses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr("sim.sweep.on_ray.run_on_ray", lambda *_: chosen.append("ray") or iter(()))
    monkeypatch.setattr("sim.sweep.on_ray.run_cells", lambda *_: chosen.append("here") or iter(()))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    list(run_anywhere([], tmp_path, 1))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6399")
    list(run_anywhere([], tmp_path, 1))
    assert chosen == ["here", "ray"]
