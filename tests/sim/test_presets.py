"""Every preset makes settings, for each method that it knows of, and runs, small, where its data can be had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sim.cli import app
from sim.errors import SettingsError
from sim.options import assignments, run_settings
from sim.presets import PRESETS, with_defaults
from sim.run import load_data, run
from sim.settings import RunSettings
from sim.sources import source_named

GENERATED = [name for name, preset in PRESETS.items() if preset.needs == "nothing"]
AT_HAND = {"motionsense", "ucihar", "spsw", "union", "mnist", "fashion_mnist"}
BY_DEFAULT = {"ucihar-cnn", "tan2022-mnist-3-mh", "qiao2023-fashion", "michieli2021-mnist-80"}
"""One of each kind; the others are slow."""


def settings_of(name: str, **given: Any) -> RunSettings:
    options = with_defaults(name, given)
    labels = source_named(options["data"]).labels(assignments(options["set"])["data"])
    return run_settings(options, labels, name)


def on_data_at_hand() -> list[Any]:
    names = [name for name, preset in PRESETS.items() if preset.options["data"] in AT_HAND]
    slow = [pytest.mark.data, pytest.mark.slow]
    return [pytest.param(name, marks=[pytest.mark.data] if name in BY_DEFAULT else slow) for name in names]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where windows are kept from one preset to the next."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", PRESETS)
def test_settings_can_be_made(name: str) -> None:
    preset = PRESETS[name]
    for method in {preset.options["method"], "fedavg", *preset.by_method}:
        settings = settings_of(name, method=method)
        assert settings.method["name"] == method
        assert settings.preset == name


@pytest.mark.parametrize("name", GENERATED)
def test_presets_without_data_run(name: str, cache: Path, tmp_path: Path) -> None:
    smoke(name, None, cache, tmp_path)


@pytest.mark.parametrize("name", on_data_at_hand())
def test_presets_with_data_at_hand_run(name: str, gaitway_data: Path, cache: Path, tmp_path: Path) -> None:
    smoke(name, gaitway_data, cache, tmp_path)


def smoke(name: str, root: Path | None, cache: Path, out: Path) -> None:
    settings = settings_of(name, scale=0.05, rounds=1, epochs=1, eval_every=1, union_limit=50)
    data = load_data(settings, root, cache, None)
    assert len(data.clients) <= max(2, -(-PRESETS[name].clients // 20))
    summary = run(settings, data, out)
    assert 0 <= summary["personalization"]["accuracy"]["mean"] <= 1
    assert json.loads((out / "config.json").read_text())["preset"] == name


def test_what_a_paper_changes_with_the_method() -> None:
    assert settings_of("ek2024-hhar").model.name == "hart_alp"
    assert settings_of("ek2024-hhar", method="fedavg").model.name == "hart"
    assert settings_of("ek2024-hhar", method="local").rounds.rounds == 40
    assert settings_of("ek2024-hhar-no-glu").model.options == {"alp": {"glu": False}}
    assert settings_of("michieli2021-mnist-50", method="fedprox").method["mu"] == 1.0
    assert settings_of("michieli2021-mnist-50").stragglers == 0.5
    mixed = settings_of("tan2022-mnist-4-mh")
    assert [model.options["channels"] for model in mixed.models] == [[10, 18], [10, 20], [10, 22]]
    assert settings_of("tan2022-cifar10-5").method["pull"] == 0.1


def test_a_method_brings_its_optimizer_where_the_presets_does_not_suit_it() -> None:
    def training(name: str, **given: Any) -> tuple[str, float, float]:
        task = settings_of(name, method="scaffold", **given).task
        return task.optimizer, task.lr, task.momentum

    assert training("ek2024-hhar") == training("motionsense-cnn") == training("synthetic-smoke") == ("sgd", 0.1, 0.0)
    assert training("tan2022-mnist-3") == ("sgd", 0.01, 0.5), "a preset's own SGD stays"
    assert training("ek2024-hhar", lr=0.3) == ("sgd", 0.3, 0.0)
    assert training("ek2024-hhar", optimizer="adam")[0] == "adam", "which the method then refuses in words"
    assert settings_of("ek2024-hhar", method="fedavg").task.optimizer == "adam"


def test_what_is_given_wins() -> None:
    settings = settings_of("ek2024-hhar", lr=0.5, rounds=7, scale=0.05, set=["model.dropout=0"])
    assert (settings.task.lr, settings.rounds.rounds, settings.model.options["dropout"]) == (0.5, 7, 0)
    assert settings_of("ek2024-hhar", scale=0.05).rounds.rounds == 30


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="unknown preset 'ek2024-hharr'; did you mean 'ek2024-hhar'"):
        with_defaults("ek2024-hharr", {})


def test_presets_are_listed() -> None:
    listed = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["presets"]).output
    for name, preset in PRESETS.items():
        assert name in listed
        assert preset.paper in listed
