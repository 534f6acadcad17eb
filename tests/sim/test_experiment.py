"""One description of an experiment: where its options come from, and which of them wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from federation.plan import DataSpec, ModelSpec, Plan, RoundSettings
from gaitway.input_spec import InputSpec
from models import CheckpointError, build
from models.checkpoint import CheckpointInfo, save_checkpoint
from sim.cli.app import app
from sim.cli.options import build_experiment, options_of, read_plan
from sim.data.sources import get_source
from sim.errors import SettingsError
from sim.experiment.initialization import Initialization, initialization, initialize
from sim.experiment.options import PLAN_OPTIONS
from sim.experiment.settings import DEFAULTS, OPTIONS, Experiment
from sim.presets import with_defaults
from sim.run import resolve
from tests.sim.small_runs import settings_for

LABELS = get_source("synthetic").labels({})
NOT_OPTIONS = {"schema_version", "dataset_options", "eval_batch", "preset"}
"""Fields of a simulation that have no option of their own: --set data.KEY, and what no user changes."""


def plan(**changes: Any) -> Plan:
    return Plan.model_validate(
        {
            "labels": LABELS,
            "model": {"name": "har_cnn", "options": {"channels": [8, 8], "feature_dim": 16}},
            "method": {"name": "fedprox", "mu": 0.5},
            "training": {"classes": len(LABELS), "feature_dim": 16, "lr": 0.02, "batch_size": 8},
            "rounds": {"rounds": 7, "over_selection": 1.5},
            "data": {"normalization": "none", "test_share": 0.3, "pipeline": {"window": 64}},
            **changes,
        }
    )


def experiment(described: Plan | None, **given: Any) -> Experiment:
    options = with_defaults(None, given, options_of(described) if described else None)
    return build_experiment(options, LABELS, None, described)


def test_every_field_of_a_simulation_is_set_by_an_option() -> None:
    own = {option.path[0] for name, option in OPTIONS.items() if name not in PLAN_OPTIONS}
    assert Experiment.model_fields.keys() - Plan.model_fields.keys() - NOT_OPTIONS == own


def test_the_defaults_are_those_of_a_server() -> None:
    found = experiment(None)
    assert (found.rounds, found.data) == (RoundSettings(), DataSpec())
    defaults = found.training.model_copy(update={"feature_dim": 0})
    assert defaults == type(found.training)(classes=len(LABELS)).model_copy(update={"feature_dim": 0})


def test_a_plan_is_simulated_as_it_is() -> None:
    described, found = plan(), experiment(plan())
    for name in Plan.model_fields.keys() - {"method"}:
        assert getattr(found, name) == getattr(described, name), name
    assert found.method["mu"] == 0.5
    assert found.method["name"] == "fedprox"


def test_options_and_set_win_over_a_plan() -> None:
    sets = ["mu=0.1", "rounds.late=next", "data.test_share=0.1", "model.feature_dim=24", "data.minutes=2"]
    found = experiment(plan(), lr=0.5, rounds=3, set=[*sets, "pipeline.stride=16"])
    assert (found.training.lr, found.training.batch_size, found.rounds.rounds) == (0.5, 8, 3)
    assert (found.rounds.late, found.rounds.over_selection) == ("next", 1.5)
    assert found.method["mu"] == 0.1
    assert found.model == ModelSpec(name="har_cnn", options={"channels": [8, 8], "feature_dim": 24})
    assert found.training.feature_dim == 24
    assert (found.data.test_share, found.data.pipeline) == (0.1, {"window": 64, "stride": 16})
    assert found.dataset_options == {"minutes": 2}


def test_another_method_takes_nothing_of_the_plans() -> None:
    assert experiment(plan(), method="fedavg").method["name"] == "fedavg"
    longer = experiment(plan(), model="hart", set=["model.blocks=1", "pipeline.window=128"])
    assert longer.model.options == {"blocks": 1}


def test_windows_of_another_length_are_refused_before_anything_is_read() -> None:
    with pytest.raises(
        SettingsError,
        match=r"hart is not .* windows \(64, 6\); models for classification that are: har_cnn, har_cnn_alp$",
    ):
        experiment(plan(), model="hart")


@pytest.mark.parametrize("kind", ["plan.json", "answer.json"])
def test_a_plan_is_read_as_it_is_sent_or_answered(kind: str, tmp_path: Path) -> None:
    sent = plan().model_dump(mode="json")
    (tmp_path / kind).write_text(json.dumps(sent if kind == "plan.json" else {"plan": sent, "simulate": "…"}))
    assert read_plan(tmp_path / kind) == plan()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("plan.toml", "labels = [", "expected a plan in TOML or JSON"),
        ("plan.json", '{"labels": []}', "labels: Tuple"),
        ("plan.json", "[]", "expected "),
    ],
)
def test_a_file_that_is_no_plan_is_refused(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_plan(tmp_path / name)
    with pytest.raises(SettingsError, match="No such file"):
        read_plan(tmp_path / "nowhere.toml")


def test_a_plan_for_other_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan(labels=["a", "b"]).model_dump_json())
    words = ["run", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run")]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, words)
    assert done.exit_code == 2
    assert "the plan is for the classes a, b, synthetic has" in done.output
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, [*words, "--preset", "synthetic-smoke"])
    assert "give only one" in done.output


def test_presets_repeat_papers_without_a_servers_screening() -> None:
    found = build_experiment(with_defaults("motionsense-cnn", {}), get_source("motionsense").labels({}), None)
    assert (found.rounds.max_weight_ratio, found.rounds.norm_factor) == (None, None)
    assert found.data.normalization == "federated"
    assert DEFAULTS["normalization"] == "client"


HART = {"feature_dim": 16, "blocks": 1, "mlp": 16, "head_width": 8, "prototypes": [4]}
INFO = CheckpointInfo("hart_alp", HART, ("a", "b"), InputSpec.windows((0.0,) * 6, (1.0,) * 6))


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "mae.safetensors", build("hart_alp", classes=2, **HART), INFO)
    given = {"model": "hart_alp", "init": tmp_path / "mae.safetensors"}
    with pytest.raises(SettingsError, match=r"contains a hart_alp whose .* start from a checkpoint of the same model"):
        _ = resolve(settings_for("fedali", **given, set=["model.feature_dim=32", "model.blocks=1"])).networks


def test_weights_of_the_earlier_placement_are_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.safetensors"
    state = {n: t for n, t in build("hart_alp", classes=2, **HART).state_dict().items() if "beta_scale" not in n}
    save_file(state, old, metadata={"gaitway": INFO.to_json()})
    sets = [f"model.{key}={value}" for key, value in HART.items()]
    with pytest.raises(CheckpointError, match=r"old\.safetensors: a hart_alp of an earlier version"):
        _ = resolve(settings_for("fedali", model="hart_alp", init=old, set=sets)).networks


def test_a_published_file_of_before_zips_is_taken_and_others_are_refused_in_words(tmp_path: Path) -> None:
    """torchvision's mobilenet_v2-b0353104.pth is such a file."""
    path, published, network = (
        tmp_path / "weights.pth",
        *(build("mobilenet_v2", classes=2, norm="frozen", width=0.25) for _ in range(2)),
    )
    state = {name: value for name, value in published.state_dict().items() if not name.startswith("head.")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    initialize(network, Initialization(path=path, sha256=""))
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    path.write_text("no weights")
    with pytest.raises(CheckpointError, match="neither a safetensors file nor one of torch"):
        initialize(network, Initialization(path=path, sha256=""))


def test_of_a_runs_directory_the_global_model_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "models" / "global.safetensors"
    with pytest.raises(SettingsError, match=r"global\.safetensors: no such file; .* directory of a run whose method"):
        initialization(tmp_path)
    save_checkpoint(path, build("hart_alp", classes=2, **HART), INFO)
    assert initialization(tmp_path) == initialization(path)
