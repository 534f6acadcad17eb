"""Runs in mixed precision: every engine's numbers, and the option's way into config, report, command and comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from federation.records.tree import flatten
from sim.data.federated_data import FederatedData
from sim.engines import Processes, Stacked, choose
from sim.engines.fork_map import is_supported
from sim.errors import SettingsError
from sim.reports.comparison.records import training_differences
from sim.reports.report import repeat_command, settings_tables
from sim.results.run_directory import RunDirectory
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, resolve, run
from tests.sim.small_runs import settings_for

pytestmark = pytest.mark.ci


def played(data: FederatedData, autocast: str, **engine: object) -> Simulation:
    simulation = build_simulation(
        resolve(settings_for("fedali", batch=8, rounds=1, optimizer="sgd", autocast=autocast, **engine)), data
    )
    list(simulation.run_rounds())
    return simulation


def state(simulation: Simulation) -> dict[str, torch.Tensor]:
    return flatten({"state": simulation.state})


def test_every_engine_trains_in_bfloat16_and_keeps_float32(few: FederatedData) -> None:
    serial, exact = state(played(few, "bfloat16")), state(played(few, "float32"))
    others = [state(played(few, "bfloat16", engine="stacked"))]
    if is_supported():
        others.append(state(played(few, "bfloat16", engine="processes", workers=2)))
        assert all(torch.equal(value, others[-1][path]) for path, value in serial.items())
    for found in (serial, *others):
        assert {path: value.dtype for path, value in found.items()} == {p: v.dtype for p, v in exact.items()}
        assert all(torch.isfinite(value).all() for value in found.values())
        assert 0 < max(float((found[path] - value).abs().max()) for path, value in exact.items()) < 0.05


def test_a_run_notes_its_precision_and_differs_by_it(few: FederatedData, tmp_path: Path) -> None:
    runs = []
    for name in ("float32", "bfloat16"):
        run(settings_for(batch=8, rounds=1, autocast=name), tmp_path / name, data=few)
        runs.append(RunDirectory(tmp_path / name))
    assert json.loads((tmp_path / "bfloat16" / "config.json").read_text())["autocast"] == "bfloat16"
    assert training_differences(*runs) == ["autocast"]
    assert "--autocast bfloat16" in repeat_command(runs[1].config)
    assert "--autocast" not in repeat_command(runs[0].config)
    shown = settings_tables(runs[1])["Training"].rows
    assert ("autocast", "bfloat16") in [tuple(cell.text for cell in row) for row in shown]


def test_compiling_is_for_engines_that_stack() -> None:
    for engine in ("stacked", "processes", "auto"):
        chosen = choose(settings_for(engine=engine, compile=True, workers=2), 3).engine
        assert isinstance(chosen, Stacked | Processes)
        assert chosen.compiler
    for engine in ("serial", "ray"):
        with pytest.raises(SettingsError, match=f"not for {engine}: use --engine stacked or processes"):
            choose(settings_for(engine=engine, compile=True), 3)
    with pytest.raises(SettingsError, match=r"not for serial, which auto chooses here \(one core or"):
        choose(settings_for(engine="auto", compile=True, workers=1), 3)
