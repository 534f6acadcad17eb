"""Cells on a Ray cluster: what comes back is what a run here writes, and a cell that fails says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.sweep.grid import Cell
from sim.sweep.on_ray import run_anywhere, run_on_ray
from sim.sweep.processes import CellPhase, CellStatus, run_cells
from tests.sim.local_ray import local_cluster

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


def test_the_address_of_a_cluster_is_what_chooses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr("sim.sweep.on_ray.run_on_ray", lambda *_: chosen.append("ray") or iter(()))
    monkeypatch.setattr("sim.sweep.on_ray.run_cells", lambda *_: chosen.append("here") or iter(()))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    list(run_anywhere([], tmp_path, 1))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6399")
    list(run_anywhere([], tmp_path, 1))
    assert chosen == ["here", "ray"]
