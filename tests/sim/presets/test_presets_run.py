"""Every preset runs to its end, small: rounds, scores, models, figures and report.

A preset is in here as soon as it is in the table. Data that cannot be had are generated in their published layout.
What a preset limits at its size (the union's examples, the clients of a round, labels) is limited at this one, too:
where less is there than the limit, what the limit does would not run.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from typer.testing import CliRunner

from federation.tasks import task_from_json
from models.checkpoint import load_checkpoint
from sim.cli.app import app
from sim.cli.options import assignments
from sim.data.images import IMAGE_SETS
from sim.data.partitions import partition_from_json
from sim.experiment.options import option_words
from sim.presets import PRESETS, Preset, with_defaults
from tests.models.small_models import SMALL
from tests.sim.presets.stand_ins import write_stand_ins

LIMITS = {"clients_per_round": 2, "generalization_examples": 3, "labelled_per_class": 1}
"""What takes the place of a preset's own limit; without one there is none here."""
PARTITION = {
    "clients": 3,
    "examples": "null",
    "deviation": "null",
    "shots": 4,
    "shots_stdev": 0,
    "test_shots": 2,
    "minimum": 1,
}
DATA = {"clients": 3, "examples": "null", "deviation": "null", "height": 32, "width": 32}
ROUNDS = {"rounds": 2, "eval_every": 2, "epochs": 1, "batch": 8, "engine": "serial"}
PAINTED = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000a49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)
"""A PNG of one pixel."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stand_ins(tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs and the cache of windows are, one and the same for all presets."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def unpainted() -> Iterator[None]:
    """Build every figure and do not paint it, which takes longer than the run; tests/sim/reports paints."""

    def save(self: FigureCanvasAgg, path: Path, **_options: Any) -> None:
        Path(path).write_bytes(PAINTED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "print_png", save)
        yield


def small(name: str, method: str, model: str) -> list[str]:
    """Words that make a preset's run a matter of a second: a small network, partition and data, and few rounds."""
    options = with_defaults(name, {"method": method, "model": model, "init": Path()})
    own = assignments(options["set"])
    limited = {key: value for key, value in LIMITS.items() if options[key] is not None}
    analysed = {"analyses": "michieli"} if name.startswith("michieli2021") else {}
    words = [word for key, value in {**ROUNDS, **limited, **analysed}.items() for word in option_words(key, value)]
    return [*words, *set_words({**small_model(model, own["model"]), **small_data(options, own)})]


def small_model(model: str, own: dict[str, Any]) -> dict[str, Any]:
    """The network's small size; what a preset says for each of several networks (1.channels) stays as it says."""
    kept = {"input_shape", *(key.partition(".")[2] for key in own)}
    return {f"model.{key}": value for key, value in SMALL[model.split("+")[0]].items() if key not in kept}


def small_data(options: dict[str, Any], own: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Small images and few clients, where the data set and the partition have such options."""
    kind, reader = options["partition"], IMAGE_SETS.get(options["data"])
    partition = asdict(partition_from_json({"kind": kind, **own["partition"]})) if kind else {}
    known = {*own["data"], *(reader.options({}) if reader else ())}
    return {
        **{f"partition.{key}": value for key, value in PARTITION.items() if partition.get(key)},
        **{f"data.{key}": value for key, value in DATA.items() if key in known},
    }


def set_words(sets: dict[str, Any]) -> list[str]:
    texts = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in sets.items()]
    return [word for text in texts for word in ("--set", text)]


def command(*words: object) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))
    assert done.exit_code == 0, f"{shlex.join(map(str, words))}\n{done.output}\n{done.exception!r}"


@pytest.fixture(scope="module")
def finished(root: Path, folder: Path) -> Callable[[str, str, str], Path]:
    """Run a preset, once, after what it starts from, and return its directory."""
    places: dict[tuple[str, str, str], Path] = {}

    def run(name: str, method: str, model: str) -> Path:
        if (name, method, model) not in places:
            out = folder / f"{name}-{method}-{model}"
            shared = ("--data-root", root, "--cache", folder / "cache")
            given = ("--method", method, "--model", model, *small(name, method, model))
            command("run", "--preset", name, *given, *start(name, method, model), *shared, "--out", out)
            places[name, method, model] = out
        return places[name, method, model]

    def start(name: str, method: str, model: str) -> list[object]:
        """Make the weights that a preset starts from, by the command that it prints."""
        printed, before = PRESETS[name].pretraining_command(name, method, model), PRESETS[name].pretrained_by
        if printed is None:
            return []
        if before is not None:
            assert f"--preset {before} --method {method} --model {model}" in printed
            return ["--init", run(before, method, model)]
        _python, _module, _sim, *words = shlex.split(printed)
        out = folder / f"weights-{name}-{method}-{model}.safetensors"
        sets = {f"model.{key}": value for key, value in SMALL[model].items()}
        given = ({"FOLDER": root, "FILE": out}.get(word, word) for word in words)
        command(*given, "--epochs", 1, "--cache", folder / "cache", *set_words(sets))
        return ["--init", out]

    return run


def kind_of(preset: Preset) -> tuple[object, ...]:
    """What code a preset runs: presets alike in it differ in numbers alone, as α or the share of stragglers."""
    options = preset.options_for(preset.options["method"])
    sets = sorted(text if text.startswith("model.") else text.partition("=")[0] for text in options.get("set", ()))
    names = (options.get(name) for name in ("data", "model", "method", "partition"))
    return preset.paper, *names, preset.pretraining, preset.pretrained_by, *sets


FIRST_OF_ITS_KIND = {kind_of(preset): name for name, preset in reversed(PRESETS.items())}
"""Those that CI runs; the others are slow."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.ci if FIRST_OF_ITS_KIND[kind_of(preset)] == name else pytest.mark.slow)
        for name, preset in PRESETS.items()
    ],
)
def test_every_preset_runs_to_its_end(finished: Callable[[str, str, str], Path], name: str) -> None:
    preset = PRESETS[name]
    options = preset.options_for(preset.options["method"])
    out = finished(name, options["method"], options["model"])
    config, summary = (json.loads((out / f"{each}.json").read_text()) for each in ("config", "summary"))
    assert (config["preset"], summary["rounds"]) == (name, ROUNDS["rounds"])
    if config["data"]["test_share"] == 0:
        lines = (out / "rounds.jsonl").read_text().splitlines()
        assert all(math.isfinite(json.loads(line)["train_loss"]) for line in lines), "pretrained on all windows"
        return
    own, served = summary["personalization"], summary["global"]
    for metric in task_from_json(config["task"]).metric_kinds:
        assert math.isfinite(served[metric] if served else own[metric]["mean"])
    models = sorted((out / "models").rglob("*.safetensors"))
    assert models
    for path in models[:3]:
        load_checkpoint(path)
    assert name in (out / "report.html").read_text()
