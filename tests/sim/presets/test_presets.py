"""Every preset makes settings, for each method that it knows of, and runs, small, where its data can be had."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import models
from federation.methods import method_from_json
from federation.tasks import task_from_json
from gaitway.input_spec import InputSpec
from models.checkpoint import CheckpointInfo, save_checkpoint
from sim.cli.app import app
from sim.cli.options import assignments, build_experiment, dataset_options
from sim.data.partitions import Pool, partition_from_json, partition_to_json
from sim.data.partitions.skewed import PowerLaw
from sim.data.sources import get_source
from sim.errors import SettingsError
from sim.experiment.initialization import initialization
from sim.experiment.settings import Experiment
from sim.presets import PRESETS, with_defaults
from sim.presets.preset import NONE_KNOWN
from sim.presets.preset import SMALL_DATA as SMALL_DATA_PAPER
from sim.run import load_data, resolve, run

GENERATED = [name for name, preset in PRESETS.items() if preset.needs == "nothing"]
SMALL_DATA = {"motionsense", "ucihar", "spsw", "union", "mnist", "fashion_mnist"}
IN_CI = {"ucihar-cnn", "ucihar-hart-pretrained", "tan2022-mnist-3-mh", "qiao2023-fashion", "michieli2021-mnist-80"}
"""One of each kind; the others are slow."""
TEN_CLASSES = Pool(np.arange(7000) % 10, 10, np.arange(7000) < 6000)
"""As many examples of each class, of which the last thousand are the published test part."""


def settings_of(name: str, **given: Any) -> Experiment:
    """Settings of a preset; one that starts from pretrained weights takes this file for them unless some are given."""
    given = {"init": Path(__file__), **given} if is_pretrained(name) else given
    options = with_defaults(name, given)
    labels = get_source(options["data"]).labels(dataset_options(options["set"]))
    return build_experiment(options, labels, name)


def is_pretrained(name: str) -> bool:
    preset = PRESETS[name]
    return preset.pretraining_command(name, "fedavg", "hart") is not None


def on_data_at_hand() -> list[Any]:
    names = [name for name, preset in PRESETS.items() if preset.options["data"] in SMALL_DATA]
    return [
        pytest.param(name, marks=[pytest.mark.data, pytest.mark.ci if name in IN_CI else pytest.mark.slow])
        for name in names
    ]


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "synthetic-smoke" else pytest.mark.ci) for name in GENERATED]
)
def test_presets_without_data_run(name: str, cache: Path, tmp_path: Path) -> None:
    smoke(name, None, cache, tmp_path)


@pytest.mark.parametrize("name", on_data_at_hand())
def test_presets_with_data_at_hand_run(name: str, gaitway_data: Path, cache: Path, tmp_path: Path) -> None:
    smoke(name, gaitway_data, cache, tmp_path)


@pytest.mark.ci
@pytest.mark.data
def test_the_vit_of_cifar_10_runs_on_pictures_at_hand(gaitway_data: Path, cache: Path, tmp_path: Path) -> None:
    """The paper's network at its full size, by a twentieth of the clients and pictures (lossy copies of CIFAR-10)."""
    if not (gaitway_data / "cifar10_jpg").is_dir():
        pytest.skip(f"no pictures of CIFAR-10: {gaitway_data / 'cifar10_jpg'} is not a folder")
    smoke("ek2024-cifar10-20", gaitway_data, cache, tmp_path, data="cifar10_jpg")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["model"], summary["data"], summary["method"]) == ("vit_tiny_alp", "cifar10_jpg", "fedali")


def smoke(name: str, root: Path | None, cache: Path, out: Path, **given: Any) -> None:
    settings = settings_of(name, scale=0.05, rounds=1, epochs=1, eval_every=1, generalization_examples=50, **given)
    if is_pretrained(name):
        settings = settings.model_copy(update={"init": initialization(pretrained(settings, out.with_suffix(".init")))})
    data = load_data(resolve(settings), root, cache, None)
    assert len(data.clients) <= max(2, -(-PRESETS[name].clients // 20))
    summary = run(settings, out, data=data)
    own, served = summary["personalization"], summary["global"]
    for metric in task_from_json(settings.task).metric_kinds:
        assert 0 <= (served[metric] if served else own[metric]["mean"]) <= 4
    assert json.loads((out / "config.json").read_text())["preset"] == name


def pretrained(settings: Experiment, path: Path) -> Path:
    """Weights that nobody has trained, for as many classes as another data set may have."""
    spec, labels = settings.model, ("a", "b", "c")
    info = CheckpointInfo(spec.name, spec.options, labels, InputSpec.windows((0.0,) * 6, (1.0,) * 6))
    save_checkpoint(path, models.build(spec.name, classes=len(labels), **spec.options), info)
    return path


def test_what_a_paper_changes_with_the_method() -> None:
    assert settings_of("ek2024-hhar").model.name == "hart_alp"
    assert settings_of("ek2024-hhar", method="fedavg").model.name == "hart"
    assert settings_of("ek2024-hhar", method="local").rounds.rounds == 40
    assert settings_of("ek2024-hhar-no-glu").model.options == {"alp": {"glu": False}}
    assert settings_of("michieli2021-mnist-50", method="fedprox").method["mu"] == 1.0
    assert settings_of("michieli2021-mnist-50").stragglers == 0.5
    mixed = settings_of("tan2022-mnist-4-mh")
    assert [model.options["channels"] for model in mixed.models] == [[10, 18], [10, 20], [10, 22]]
    assert settings_of("tan2022-cifar10-5").method["lam"] == 0.1


def test_who_deals_by_class_and_who_by_client() -> None:
    """As the papers do that they cite; Michieli and Ozay cite Hsu et al. 2019, who draw each client's classes."""
    for name in ("ek2024-cifar10-20", "ek2024-cifar100-50", "qiao2023-mnist", "qiao2023-fashion"):
        partition = partition_from_json(settings_of(name).partition or {})
        assert partition_to_json(partition)["axis"] == "class", name
    assert isinstance(partition_from_json(settings_of("michieli2021-voc-0.1").partition or {}), PowerLaw)


@pytest.mark.parametrize(("data", "narrow", "wide"), [("mnist", 2, 3), ("femnist", 1, 2), ("cifar10", 1, 2)])
@pytest.mark.parametrize("ways", [3, 4, 5])
def test_tans_tables_have_two_spreads_of_n(data: str, ways: int, narrow: int, wide: int) -> None:
    """Table 1 has the narrow one; tables 2 to 4 both, for fedproto-mh too. k = 100 varies as much, as in their code."""
    for name, stdev in ((f"tan2022-{data}-{ways}", narrow), (f"tan2022-{data}-{ways}-mh-stdev-{wide}", wide)):
        partition = settings_of(name).partition or {}
        assert [partition[key] for key in ("ways", "stdev", "shots_stdev")] == [ways, stdev, stdev]
        assert partition_to_json(partition_from_json(partition))["shots"] == 100
        rounds = [settings_of(each, method="fedprox").rounds.rounds for each in (name, f"tan2022-{data}-{ways}")]
        assert rounds[0] == rounds[1]


@pytest.mark.parametrize("name", ["qiao2023-mnist", "qiao2023-fashion"])
def test_qiaos_dirichlet_deals_each_class_among_clients(name: str) -> None:
    """Section III-B cites Yurochkin et al. 2019 for Dir(α); by client every one would have 200 examples."""
    dealt = partition_from_json({**(settings_of(name).partition or {}), "minimum": 1}).divide(TEN_CLASSES, 0)
    sizes = [len(share.train) for share in dealt.values()]
    assert sum(sizes) == 2000
    assert max(sizes) > 2 * min(sizes)
    by_client = settings_of(name, set=["partition.axis=client"]).partition or {}
    assert {len(share.train) for share in partition_from_json(by_client).divide(TEN_CLASSES, 0).values()} == {200}


def test_a_method_brings_its_optimizer_where_the_presets_does_not_suit_it() -> None:
    def training(name: str, **given: Any) -> tuple[str, float, float]:
        training = settings_of(name, method="scaffold", **given).training
        return training.optimizer, training.lr, training.momentum

    assert training("ek2024-hhar") == training("motionsense-cnn") == training("synthetic-smoke") == ("sgd", 0.1, 0.0)
    assert training("tan2022-mnist-3") == ("sgd", 0.01, 0.5), "a preset's own SGD stays"
    assert training("ek2024-hhar", lr=0.3) == ("sgd", 0.3, 0.0)
    assert training("ek2024-hhar", optimizer="adam")[0] == "adam", "which the method then refuses in words"
    assert settings_of("ek2024-hhar", method="fedavg").training.optimizer == "adam"


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
@pytest.mark.parametrize(("data", "reported", "rounded_by"), [("mnist", 106e3, 500), ("femnist", 102e3, 500),
                                                              ("cifar10", 225e6, 5e6)])  # fmt: skip
def test_tans_heads_leave_what_table_1_says_to_travel(
    method: str, data: str, reported: float, rounded_by: float
) -> None:
    """'# of Comm Params' of FedPer, over 20 clients; with one layer as the head MNIST's were 427 k."""
    settings = settings_of(f"tan2022-{data}-3", method=method)
    model = models.build(settings.model.name, classes=settings.training.classes, **settings.model.options)
    shared = method_from_json(settings.method).shared
    travelling = 20 * sum(value.numel() for name, value in model.named_parameters() if shared(name))
    assert travelling == pytest.approx(reported, abs=rounded_by)


def test_harts_base_is_six_sevenths_of_what_fedavg_sends() -> None:
    """Ek et al.'s table 3 says 0.14 ×: that is the head, which stays."""
    settings = settings_of("ek2024-hhar-overhead", method="fedper")
    hart = models.build(settings.model.name, classes=6, **settings.model.options)
    sizes = {name: value.numel() for name, value in hart.named_parameters()}
    shared = method_from_json(settings.method).shared
    assert 4 * sum(sizes.values()) == pytest.approx(5.8e6, rel=0.01)
    assert sum(size for name, size in sizes.items() if shared(name)) / sum(sizes.values()) == pytest.approx(
        0.86, abs=0.005
    )


def test_what_each_table_of_fedali_varies() -> None:
    counts = [settings_of(f"ek2024-hhar-prototypes-{most}").model.options["prototypes"] for most in (1024, 2048, 4096)]
    assert counts[0] == [1024, 512, 256, 128, 64, 32]
    assert counts[1] == [2048, 1024, 512, 256, 128, 64]
    assert counts[2] == [4096, 2048, 1024, 512, 256, 128]
    assert settings_of("ek2024-hhar-full").model.options == {}
    assert "prototypes" not in settings_of("ek2024-hhar-prototypes-1024", method="fedavg").model.options
    assert settings_of("ek2024-hhar", method="fedproto").method["predict_by"] == "head"


def test_figure_5_of_fedali_is_a_local_run_of_200_epochs() -> None:
    settings = settings_of("ek2024-hhar-convergence")
    assert (settings.method["name"], settings.model.name) == ("local", "hart_alp")
    assert (settings.rounds.rounds, settings.training.epochs) == (200, 1)


def test_eks_sensors_of_50_hz_are_not_low_passed() -> None:
    for name, preset in PRESETS.items():
        if preset.paper == "Ek et al. 2024" and not preset.options["data"].startswith("cifar"):
            assert settings_of(name).data.pipeline == {"anti_alias": "downsampling"}, name


def test_what_each_row_of_michielis_table_3_changes() -> None:
    def row(name: str) -> tuple[Any, ...]:
        settings = settings_of(f"michieli2021-mnist-{name}")
        rounds, method = settings.rounds, settings.method
        return method["name"], method["weighting"], rounds.sampling, rounds.partial_work, settings.stragglers

    assert row("fairness") == ("fedavg", "uniform", "examples", "method", 0.5)
    assert row("fairness-iid") == ("fedavg", "uniform", "uniform", "method", 0.5)
    assert row("toleration") == ("fedavg", "examples", "examples", "use", 0.5)
    assert row("fairness-toleration") == ("fedavg", "uniform", "examples", "use", 0.5)
    assert row("no-toleration") == ("fedproto_margin", "examples", "examples", "drop", 0.5)
    assert settings_of("michieli2021-mnist-positive").method["distance"] == "positive"
    assert settings_of("michieli2021-mnist-apm").method["margins"] == "apm"
    assert settings_of("michieli2021-mnist-lpm").method["margins"] == "lpm"
    assert settings_of("michieli2021-mnist-lpm", method="fedavg").method["weighting"] == "examples"


@pytest.mark.parametrize(("method", "model"), [("fedali", "hart_alp"), ("fedavg", "hart")])
def test_a_pretrained_preset_names_the_command_that_makes_its_weights(method: str, model: str) -> None:
    command = f"python -m sim pretrain --for ek2024-hhar-pretrained --data-root FOLDER --model {model} --out FILE"
    with pytest.raises(SettingsError, match=f"give --init FILE, which this makes: {command}"):
        with_defaults("ek2024-hhar-pretrained", {"method": method})
    chosen = with_defaults("ek2024-hhar-pretrained", {"method": method, "init": Path("weights")})
    assert (chosen["init"], chosen["rounds"]) == (Path("weights"), 600)


@pytest.mark.parametrize("name", ["ek2024-hhar-pretrained", "ek2024-masked", "ek2024-hhar-masked"])
def test_pretraining_says_how_much_is_masked(name: str) -> None:
    """60 % is the paper's; four of eight patches are half."""
    printed = " ".join(CliRunner(env={"COLUMNS": "500"}).invoke(app, ["presets", name]).output.split())
    assert "hides 4 of a window's 8 patches, 50 %" in printed
    assert "--set task.masked=0.625 hides 5" in printed


def test_the_five_sets_have_160_devices_of_133_users_and_all_windows_are_trained_on() -> None:
    """PAMAP2 9 × 3, MotionSense 24, MobiAct 67, UCI HAR 30, SHL 3 × 4; the paper counts 122 subjects."""
    assert PRESETS["ek2024-masked"].clients == 9 * 3 + 24 + 67 + 30 + 3 * 4
    assert any("or 133 with --clients-by user" in each for each in PRESETS["ek2024-masked"].departures)
    assert settings_of("ek2024-masked").data.test_share == 0
    assert settings_of("ek2024-hhar-masked").data.test_share == 0.2, "whose test windows the labels are scored on"


def test_a_preset_after_a_federated_pretraining_names_that_run() -> None:
    command = "python -m sim run --preset ek2024-hhar-masked --method fedali --model hart_alp --data-root FOLDER"
    with pytest.raises(SettingsError, match=f"give --init FILE, which this makes: {command}"):
        with_defaults("ek2024-hhar-few-labels", {})
    pretraining, after = settings_of("ek2024-hhar-masked", method="fedali"), settings_of("ek2024-hhar-few-labels")
    assert pretraining.model == after.model
    assert pretraining.task["name"] == "masked_reconstruction"
    assert (after.labelled_per_class, after.labelled_clients) == (10, 0.25)


def test_what_is_given_wins() -> None:
    settings = settings_of("ek2024-hhar", lr=0.5, rounds=7, scale=0.05, set=["model.dropout=0"])
    assert (settings.training.lr, settings.rounds.rounds, settings.model.options["dropout"]) == (0.5, 7, 0)
    assert settings_of("ek2024-hhar", scale=0.05).rounds.rounds == 30


def test_options_of_the_presets_data_are_not_set_of_others() -> None:
    name = "michieli2021-synthetic-0"
    assert "data.clients=30" in with_defaults(name, {})["set"]
    assert "data.clients=30" in with_defaults(name, {"data": "synthetic_logistic"})["set"]
    others = with_defaults(name, {"data": "motionsense"})["set"]
    assert others
    assert not [text for text in others if text.startswith("data.")]
    assert "data.test_share=0" in with_defaults("ek2024-masked", {"data": "motionsense"})["set"], "it's the plan's"


@pytest.mark.parametrize("data", ["synthetic", "mnist", "femnist"])
def test_michielis_presets_ask_for_the_sizes_that_the_paper_reports(data: str) -> None:
    preset = PRESETS[f"michieli2021-{data}-50"]
    sets = assignments(preset.options["set"])
    asked = sets["partition"] or sets["data"]
    assert preset.reported is not None
    assert (asked["examples"], asked["deviation"]) == (preset.reported.examples, preset.reported.std)
    assert preset.reported.examples / preset.clients == pytest.approx(preset.reported.mean, abs=0.06)


def test_michielis_network_for_celeba_has_no_normalization() -> None:
    """S1.2: '4-layer CNN each with 32 channels and followed by 2 × 2 max pooling and ReLU activation'."""
    spec = settings_of("michieli2021-celeba-0").model
    network = models.build(spec.name, classes=2, **spec.options)
    kinds = {type(layer).__name__ for layer in network.modules()}
    assert not {kind for kind in kinds if "Norm" in kind}


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="unknown preset 'ek2024-hharr'; did you mean 'ek2024-hhar'"):
        with_defaults("ek2024-hharr", {})


def test_a_papers_preset_says_where_it_departs_from_paper_and_code() -> None:
    """Or that none is known."""
    for name, preset in PRESETS.items():
        assert preset.departures or preset.paper == SMALL_DATA_PAPER, name
        assert len(set(preset.departures)) == len(preset.departures), name
        assert NONE_KNOWN not in preset.departures or preset.departures == (NONE_KNOWN,), name


@pytest.mark.parametrize("name", {preset.paper: name for name, preset in PRESETS.items()}.values())
def test_departures_are_printed(name: str) -> None:
    printed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["presets", name]).output
    bare = re.sub(r"\s+", "", printed)
    for departure in PRESETS[name].departures:
        assert re.sub(r"\s+", "", departure) in bare


def test_what_a_departure_says_of_settings_is_so() -> None:
    assert settings_of("ek2024-hhar", method="fedprox").method["mu"] == 0.01
    assert settings_of("ek2024-hhar").model.options.get("alp_update", "soft") == "soft"
    assert settings_of("ek2024-hhar").data.normalization == "federated"
    assert settings_of("tan2022-mnist-3", method="fedrep").method["head_lr_factor"] == 1
    assert settings_of("tan2022-mnist-3").method["predict_classes"] == "own"
    assert settings_of("tan2022-mnist-3").method["distance"] == "squared"
    assert settings_of("qiao2023-mnist").method["distance"] == "squared"
    assert settings_of("michieli2021-mnist-50").rounds.rounds == 200


def test_presets_are_listed() -> None:
    listed = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["presets"]).output
    for name, preset in PRESETS.items():
        assert name in listed
        assert preset.paper in listed
        if preset.pretraining:
            assert f"{name}: first python -m sim pretrain --for {name}" in " ".join(listed.split())
        if preset.pretrained_by:
            assert f"{name}: first python -m sim run --preset {preset.pretrained_by}" in " ".join(listed.split())
            assert PRESETS[preset.pretrained_by].options["task"] == "masked_reconstruction"
