"""Where examples come from: labels and shapes before anything is read, partitions, groups, scale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from federation.records import Examples
from federation.tasks.classification import Classification
from har_pipeline import Recording, dataset_labels
from har_pipeline.readers import READERS
from sim.cli.app import app
from sim.cli.options import assignments, build_experiment
from sim.data.federated_data import ClientData, FederatedData, pooled
from sim.data.partitions import class_counts
from sim.data.repartition import current_partition
from sim.data.selection import keep_known_classes, one_fold, scaled
from sim.data.sources import get_source, source_names
from sim.errors import SettingsError
from sim.experiment.options import Holdout
from sim.experiment.settings import Experiment
from sim.presets import with_defaults
from sim.reports.report import repeat_command
from sim.run import load_data, resolve
from tests.sim.data.images.layouts import idx, noise

RECORDINGS = ["data.subjects=2", "data.phones=2", "data.places=1", "data.minutes=2"]
TASKS = ["data.clients=4", "data.log_mean=2", "data.log_std=1"]


def settings_of(data: str, **given: Any) -> Experiment:
    options = with_defaults(None, {"data": data, **given})
    return build_experiment(options, get_source(data).labels(assignments(options["set"])["data"]), None)


def recordings(cache: Path, **given: Any) -> FederatedData:
    sets = [*RECORDINGS, *given.pop("set", [])]
    return load_data(resolve(settings_of("synthetic", set=sets, **given)), None, cache, None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training and 30 test images of ten digits, as MNIST is published."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, count in (("train", 60), ("t10k", 30)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(noise(count, count, 28, 28)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    return folder


@pytest.mark.parametrize(
    ("data", "shape", "classes"),
    [
        ("motionsense", (128, 6), 6),
        ("motionsense+ucihar", (128, 6), 7),
        ("mnist", (1, 28, 28), 10),
        ("cifar100", (3, 32, 32), 100),
        ("celeba", (3, 84, 84), 2),
        ("synthetic_logistic", (60,), 10),
    ],
)
def test_a_source_knows_its_labels_and_shape(data: str, shape: tuple[int, ...], classes: int) -> None:
    source = get_source(data)
    assert source.input_spec({}, {}).shape == shape
    assert len(source.labels({})) == classes


def test_options_change_them() -> None:
    assert len(get_source("femnist").labels({"classes": 10})) == 10
    assert get_source("celeba").input_spec({"side": 32}, {}).shape == (3, 32, 32)


def test_an_unknown_data_set_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="unknown data set 'fashion-mnist'; did you mean 'fashion_mnist'"):
        get_source("fashion-mnist")
    assert {"motionsense", "union", "mnist", "synthetic_logistic"} <= set(source_names())


def test_models_are_built_for_the_data() -> None:
    assert settings_of("mnist", model="vit_tiny").model.options["input_shape"] == [1, 28, 28]
    celeba = settings_of("celeba", model="celeba_cnn", set=["data.side=64"])
    assert (celeba.model.options["input_shape"], celeba.training.classes) == ([3, 64, 64], 2)
    assert celeba.training.feature_dim == 4 * 4 * 32
    assert settings_of("synthetic_logistic", model="dense").training.feature_dim == 128
    assert settings_of("synthetic", model="har_cnn").model.options == {}


@pytest.mark.parametrize(
    ("data", "model", "words"),
    [
        (
            "synthetic",
            "resnet18",
            r"resnet18 is not .* windows \(128, 6\); models .*: hart, hart_alp, har_features, har_cnn, har_cnn_alp$",
        ),
        ("synthetic", "dense", r"dense is not .* windows \(128, 6\)"),
        ("mnist", "har_cnn", r"har_cnn is not .* images \(1, 28, 28\); models .* that are: dense, mnist_cnn"),
        ("synthetic_logistic", "hart", r"hart is not .* vectors \(60,\); models for classification that are: dense$"),
    ],
)
def test_a_model_for_other_data_is_refused_with_those_that_fit(data: str, model: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_of(data, model=model)


def test_images_are_dealt_by_a_partition(digits: Path) -> None:
    settings = settings_of("mnist", model="mnist_cnn", partition="equal", set=["partition.clients=3"])
    data = load_data(resolve(settings), digits, None, None)
    assert {(len(c.train.y), len(c.test.y)) for c in data.clients.values()} == {(20, 10)}
    assert settings.partition == {"kind": "equal", "clients": 3, "test": "published", "test_share": 0.2,
                                  "examples": None}  # fmt: skip


def test_images_need_a_partition(digits: Path) -> None:
    with pytest.raises(SettingsError, match=r"mnist has no natural clients; give --partition natural\|dirichlet"):
        load_data(resolve(settings_of("mnist", model="mnist_cnn")), digits, None, None)


@pytest.mark.parametrize(
    ("data", "model", "sets", "kind"),
    [
        ("camvid", "segmenter_small", ["task.ignore_index=255"], "natural"),
        ("femnist_leaf", "femnist_cnn", ["partition.minimum=5"], "natural"),
        ("celeba", "celeba_cnn", [], "natural"),
        ("mask_folder", "segmenter_small", ['data.labels=["a","b"]', "data.client=([^/]+)/"], "natural"),
        ("mask_folder", "segmenter_small", ['data.labels=["a","b"]'], None),
        ("mnist", "mnist_cnn", [], None),
        ("synthetic", "har_cnn", [], None),
    ],
)
def test_images_that_belong_to_someone_are_dealt_so(data: str, model: str, sets: list[str], kind: str | None) -> None:
    task = "segmentation" if model == "segmenter_small" else "classification"
    settings = settings_of(data, model=model, set=sets, task=task)
    assert (settings.partition or {"kind": None})["kind"] == kind
    assert (f"--partition {kind}" in repeat_command(settings)) == (kind is not None)
    if "partition.minimum=5" in sets:
        assert settings.partition is not None
        assert settings.partition["minimum"] == 5
    given = settings_of(data, model=model, set=[each for each in sets if "partition" not in each], task=task,
                        partition="equal")  # fmt: skip
    assert given.partition is not None
    assert given.partition["kind"] == "equal"


def test_tasks_are_generated() -> None:
    data = load_data(resolve(settings_of("synthetic_logistic", model="dense", set=TASKS)), None, None, None)
    assert list(data.clients) == ["client-000", "client-001", "client-002", "client-003"]
    with pytest.raises(SettingsError, match="unknown option 'phi3' for synthetic_logistic; did you mean 'phi2'"):
        load_data(resolve(settings_of("synthetic_logistic", model="dense", set=["data.phi3=1"])), None, None, None)
    with pytest.raises(SettingsError, match="generated client by client; leave out --partition"):
        load_data(resolve(settings_of("synthetic_logistic", model="dense", partition="equal")), None, None, None)


def test_clients_are_grouped_by_user(cache: Path) -> None:
    natural, users = recordings(cache), recordings(cache, clients_by="user")
    assert len(natural.clients) == 4
    assert list(users.clients) == ["s00", "s01"]
    parts = [client for name, client in natural.clients.items() if name.startswith("s01")]
    assert torch.equal(users.clients["s01"].train.x, torch.cat([part.train.x for part in parts]))
    assert torch.equal(users.clients["s01"].test.y, torch.cat([part.test.y for part in parts]))


def test_recordings_are_dealt_again_and_test_windows_stay_test_windows(cache: Path) -> None:
    natural = recordings(cache)
    dealt = recordings(cache, partition="dirichlet", set=["partition.clients=3", "partition.minimum=2"])
    assert list(dealt.clients) == ["client-000", "client-001", "client-002"]
    for part in ("train", "test"):
        before, after = (
            sum(float(getattr(c, part).x.double().sum()) for c in d.clients.values()) for d in (natural, dealt)
        )
        assert before == pytest.approx(after)
    assert not dealt.split_leaks
    mixed = recordings(cache, partition="equal", set=["partition.clients=3", 'partition.test="split"'])
    assert mixed.split_leaks


def test_what_is_shown_is_what_there_is(cache: Path) -> None:
    data = recordings(cache)
    shares, y = current_partition(data, Classification())
    assert list(shares) == list(data.clients)
    counts = class_counts(shares, y, len(data.labels), "test")
    assert counts.tolist() == [each["test_per_class"] for each in data.per_class(Classification()).values()]


def test_scale_keeps_a_share_of_clients_and_of_each_class(cache: Path) -> None:
    whole = recordings(cache)
    small = scaled(whole, 0.5, seed=3)
    assert len(small.clients) == 2
    assert set(small.clients) < set(whole.clients)
    for name, client in small.clients.items():
        before = torch.bincount(whole.clients[name].train.y)
        assert torch.equal(torch.bincount(client.train.y), (before + 1) // 2)
    assert len(scaled(whole, 0.01, seed=3).clients) == 2
    assert scaled(whole, 1.0, seed=3) is whole


def test_new_clients_add_nothing_to_the_statistics(cache: Path) -> None:
    whole, held = (
        recordings(cache, normalization="federated", **given) for given in ({}, {"holdout": "leave-subjects-out:s01"})
    )
    assert [name.partition("_")[0] for name in held.new_clients] == ["s01", "s01"]
    assert [name.partition("_")[0] for name in held.clients] == ["s00", "s00"]
    first = next(iter(held.clients))
    assert held.statistics[first] != whole.statistics[first]
    own = recordings(cache, holdout="leave-subjects-out:s01", normalization="client")
    assert own.statistics.keys() == held.clients.keys()


def test_a_pattern_holds_out_every_subject_that_it_matches(cache: Path) -> None:
    held = recordings(cache, holdout="leave-subjects-out:*1")
    assert {name.partition("_")[0] for name in held.new_clients} == {"s01"}


def test_new_clients_keep_only_what_somebody_trains_on_where_the_holdout_says_so() -> None:
    def having(*labels: int) -> Examples:
        return Examples(torch.arange(len(labels)).float().reshape(-1, 1), torch.tensor(labels))

    data = FederatedData(
        ("walk", "run", "sit"),
        {"ann": ClientData(having(0, 0), having(0, 2)), "bob": ClientData(having(2), having(0))},
        {},
        False,
        {"eve": ClientData(having(1, 0, 2), having(1, 2, 1)), "ida": ClientData(having(1), having(1))},
    )
    asked = Holdout(kind="leave-clients-out", out=2, known_classes=True)
    held = keep_known_classes(data, asked, Classification())
    assert list(held.new_clients) == ["eve"]
    eve = held.new_clients["eve"]
    assert (eve.train.y.tolist(), eve.test.y.tolist(), eve.test.x.tolist()) == ([0, 2], [2], [[1.0]])
    with pytest.raises(SettingsError, match="no class in common"):
        keep_known_classes(replace(data, new_clients={"ida": data.new_clients["ida"]}), asked, Classification())
    everything = asked.model_copy(update={"known_classes": False})
    assert keep_known_classes(data, everything, Classification()) is data


def test_clients_of_any_data_can_be_held_out(cache: Path) -> None:
    given = {"model": "dense", "set": TASKS}
    held = load_data(
        resolve(settings_of("synthetic_logistic", holdout="leave-clients-out:1", **given)), None, None, None
    )
    assert (len(held.clients), len(held.new_clients)) == (3, 1)
    named = settings_of("synthetic_logistic", holdout="leave-clients-out:client-002,", **given)
    assert list(load_data(resolve(named), None, None, None).new_clients) == ["client-002"]
    some = settings_of("synthetic_logistic", holdout="leave-clients-out:*-001,*-002", **given)
    assert list(load_data(resolve(some), None, None, None).new_clients) == ["client-001", "client-002"]
    with pytest.raises(SettingsError, match="'x\\*' matches none of client-000"):
        load_data(resolve(settings_of("synthetic_logistic", holdout="leave-clients-out:x*", **given)), None, None, None)
    with pytest.raises(SettingsError, match="have no subjects or devices; use leave-clients-out"):
        load_data(resolve(settings_of("synthetic_logistic", holdout="leave-devices-out:1", **given)), None, None, None)
    with pytest.raises(SettingsError, match="cannot hold out 4 of 4 clients"):
        load_data(resolve(settings_of("synthetic_logistic", holdout="leave-clients-out:4", **given)), None, None, None)


# ---- validation


def rows_of(data: FederatedData, *parts: str) -> set[bytes]:
    """Every example of some parts, as bytes."""
    found = [getattr(client, part) for client in data.clients.values() for part in parts]
    return {x.numpy().tobytes() for part in found if part is not None for x in part.x}


def test_validation_windows_are_taken_from_training_alone(cache: Path) -> None:
    raw = {"normalization": "client", "validation_share": 0.0}
    without, with_ = recordings(cache, **raw), recordings(cache, **raw | {"validation_share": 0.2})
    assert without.validation == {}
    assert set(with_.validation) == set(with_.clients)
    for name, client in with_.clients.items():
        before, now = without.clients[name], client
        assert len(now.test.y) == len(before.test.y)
        assert 0 < len(now.validation.y) < len(before.train.y) - len(now.train.y) + 1
        assert with_.statistics[name].count == 128 * len(now.train.y), "validation adds nothing to the statistics"
    counts = with_.per_class(Classification())
    assert {each["validation"] for each in counts.values()} == {len(v.y) for v in with_.validation.values()}


def test_validation_goes_with_its_clients(cache: Path) -> None:
    natural = recordings(cache, validation_share=0.2)
    held = rows_of(natural, "validation")
    assert held
    assert rows_of(recordings(cache, clients_by="user", validation_share=0.2), "validation") == held
    for kind in ("dirichlet", "natural"):
        sets = ["partition.clients=3", "partition.minimum=2", 'partition.test="published"']
        dealt = recordings(cache, partition=kind, set=sets, validation_share=0.2)
        assert rows_of(dealt, "validation") <= held
        assert not rows_of(dealt, "train", "test") & held
        for client in dealt.clients.values():
            assert set(client.validation.y.tolist()) <= set(client.train.y.tolist())
    assert rows_of(recordings(cache, partition="dirichlet", set=["partition.clients=3", "partition.minimum=2"],
                              validation_share=0.2), "validation") == held  # fmt: skip
    small = scaled(natural, 0.5, seed=3)
    assert rows_of(small, "validation") < held
    everybody = pooled(natural)
    assert rows_of(everybody, "validation") == held
    assert not rows_of(everybody, "train") & held
    assert "everyone" not in everybody.validation


def test_a_partition_that_mixes_cuts_its_own_validation(cache: Path) -> None:
    sets = ["partition.clients=3", 'partition.test="split"']
    given = [recordings(cache, partition="equal", set=sets, validation_share=share) for share in (0.0, 0.2)]
    for name, before in given[0].clients.items():
        now = given[1].clients[name]
        assert now.validation is not None
        assert len(now.train.y) + len(now.validation.y) == len(before.train.y)
        assert len(now.test.y) == len(before.test.y)
        for label, count in enumerate(torch.bincount(before.train.y).tolist()):
            assert int((now.validation.y == label).sum()) == round(0.2 * count)


def test_images_and_tasks_have_validation_examples_too(digits: Path) -> None:
    images = {"model": "mnist_cnn", "partition": "equal", "set": ["partition.clients=1"]}
    tasks = {"model": "dense", "set": TASKS}
    for name, given, root in (("mnist", images, digits), ("synthetic_logistic", tasks, None)):
        without, with_ = (
            load_data(resolve(settings_of(name, **given, validation_share=share)), root, None, None)
            for share in (0.0, 0.5)
        )
        for client, before in without.clients.items():
            now = with_.clients[client]
            assert now.validation is not None
            assert torch.equal(now.test.x, before.test.x)
            for label in set(before.train.y.tolist()):
                rows = [part.x[part.y == label] for part in (now.train, now.validation)]
                assert len(rows[1]) == round(0.5 * (len(rows[0]) + len(rows[1])))
                assert torch.equal(torch.cat(rows), before.train.x[before.train.y == label])


def test_a_tenth_is_for_validation_unless_a_papers_preset_says_otherwise() -> None:
    assert settings_of("synthetic").validation_share == 0.1
    for preset, share in (("ek2024-hhar", 0.0), ("tan2022-mnist-3", 0.0), ("motionsense-cnn", 0.1)):
        assert with_defaults(preset, {})["validation_share"] == share
    assert with_defaults("ek2024-hhar", {"validation_share": 0.2})["validation_share"] == 0.2


def test_labels_are_those_of_the_pipeline() -> None:
    assert get_source("spsw").labels({}) == dataset_labels("spsw")


@pytest.mark.ci
def test_what_is_odd_about_recordings_is_said_by_the_command_and_kept_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synthetic people's accelerometers in g instead of m/s²."""
    reader = READERS["synthetic"]

    def in_g(*given: Any) -> Iterator[Recording]:
        for each in reader.recordings(*given):
            yield each._replace(values=np.asarray(each.values) / 9.80665) if each.sensor == "acc" else each

    monkeypatch.setitem(READERS, "synthetic", replace(reader, recordings=in_g))
    data = recordings(tmp_path)
    (words,) = data.findings
    assert words.startswith("warning: all 4 clients, accelerometer: ")
    assert "set the unit of the acceleration to g" in words
    out, sets = tmp_path / "run", [word for each in RECORDINGS for word in ("--set", each)]
    said = CliRunner().invoke(
        app, ["run", "--data", "synthetic", *sets, "--method", "fedavg", "--model", "har_cnn", "--rounds", "1",
              "--cache", str(tmp_path), "--out", str(out)],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert words in " ".join(said.output.split())
    assert json.loads((out / "config.json").read_text())["findings"] == [words]
    assert "set the unit of the acceleration to g" in (out / "report.html").read_text()


def test_seeds_hold_everybody_out_once() -> None:
    found, everybody = [], set[str]()
    for seed in range(3):
        settings = settings_of(
            "synthetic_logistic", holdout="leave-clients-out:1/3", seed=seed, model="dense", set=TASKS
        )
        held = load_data(resolve(settings), None, None, None)
        assert not held.clients.keys() & held.new_clients.keys()
        everybody |= held.clients.keys() | held.new_clients.keys()
        found += [*held.new_clients]
    assert sorted(found) == sorted(everybody)
    assert one_fold("abcdefg", "1/3", 5) == one_fold("gfedcba", "1/3", 2)
    with pytest.raises(SettingsError, match="there are 2 to hold out; use 1/2 to 1/2"):
        one_fold("ab", "1/3", 0)
