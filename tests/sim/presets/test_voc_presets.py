"""Michieli and Ozay's VOC experiment: what its presets set, whom its partition deals to, and that it runs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gaitway.terminal import Console
from sim.cli.app import app
from sim.cli.options import assignments
from sim.cli.presets import partition_preset
from sim.data.images.voc import single_class_images
from sim.data.partitions import class_counts
from sim.presets import PRESETS
from tests.har_pipeline.layouts import unpacked
from tests.sim.data.images.layouts import voc_squares
from tests.sim.presets.test_presets import settings_of

NAMES = [name for name in PRESETS if name.startswith("michieli2021-voc-")]


def invoked(*words: object, width: int = 200) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.cli.presets.console", Console(width=width))  # the other is as wide as when it was made
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))
    return done.exit_code, done.output


def test_both_class_sets_and_five_alphas() -> None:
    found = [assignments(PRESETS[name].options["set"]) for name in NAMES]
    alphas = {
        classes: [each["partition"]["alpha"] for each in found if each["data"]["classes"] == classes]
        for classes in ("objects", "macro")
    }
    assert alphas == {classes: [0.01, 0.1, 1, 10, 100] for classes in ("objects", "macro")}


def test_the_settings_are_those_of_table_1() -> None:
    settings = settings_of("michieli2021-voc-macro-0.1")
    training, rounds = settings.training, settings.rounds
    assert settings.model.name == "deeplab_v3plus"
    assert (settings.task["name"], settings.task["background"], settings.task["ignore_index"]) == (
        "segmentation",
        0,
        255,
    )
    assert (training.optimizer, training.lr, training.epochs, training.batch_size) == ("adam", 1e-4, 2, 16)
    assert (training.weight_decay, training.lr_schedule, training.lr_power) == (4e-5, "polynomial", 0.9)
    assert (rounds.rounds, rounds.clients_per_round, rounds.sampling) == (400, 10, "examples")
    assert settings.labels == ("background", "person", "vehicles", "household", "animals")
    partition = {"kind": "power_law", "alpha": 0.1, "gamma": 3.0, "clients": 100, "examples": 6665, "test": "split"}
    assert partition.items() <= settings.partition.items()
    assert settings_of("michieli2021-voc-1", method="fedavg").method["name"] == "fedavg"


@pytest.mark.data
@pytest.mark.parametrize("seed", [0, 1])
def test_the_real_classes_are_dealt_nearly_as_the_paper_reports(gaitway_data: Path, seed: int) -> None:
    """6,665 of 6,746 images, 66.7 ± 26.9 a client beside the paper's 66.7 ± 25.7; fewer classes with a smaller α."""
    y = single_class_images(gaitway_data / "voc2012" / "voc2012_aug_classes.csv.gz")
    held = {}
    for name in NAMES:
        dealt = partition_preset(name, PRESETS[name], y, seed)
        train, test = (class_counts(dealt.shares, dealt.y, len(dealt.labels), part) for part in ("train", "test"))
        sizes = (train + test).sum(1)
        assert (len(sizes), sizes.sum()) == (100, 6665)
        assert sizes.mean() == pytest.approx(66.7, abs=0.1)
        assert sizes.std() == pytest.approx(25.7, rel=0.05)
        assert test.sum() == pytest.approx(0.2 * 6665, rel=0.01)
        assert not (train + test)[:, 0].any(), "nobody is dealt an image for its background"
        held[name] = float(((train + test) > 0).sum(1).mean())
    for group in (NAMES[:5], NAMES[5:]):
        assert [held[name] for name in group] == sorted(held[name] for name in group)
    assert held["michieli2021-voc-0.01"] < 2.5
    assert held["michieli2021-voc-100"] > 18
    assert held["michieli2021-voc-macro-100"] == 4


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """Facts about 7,000 images."""
    random = np.random.default_rng(0)
    lines = [f"p{k},1,500,375,{random.integers(1, 21)}" for k in range(7000)]
    path = tmp_path / "facts.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["image,in_train_aug,width,height,classes", *lines, ""]).encode()))
    return path


def test_the_command_shows_statistics_beside_the_papers(facts: Path, tmp_path: Path) -> None:
    code, output = invoked("presets", "--classes", facts)
    assert code == 0, output
    assert "7,000 images of train_aug show one class of objects" in output
    assert re.search(r"the paper +6,665 +66.7 ± 25.7", output)
    for name in NAMES:
        assert re.search(rf"{name} +6,665 +66.7 ± 26.9 +46 +212 ", output)
    code, narrow = invoked("presets", "--classes", facts, width=80)
    assert code == 0
    assert "…" not in narrow
    assert all(re.search(rf"{name} .* 66.7 ± 26.9 ", narrow) for name in NAMES), "rows fit into 80 columns"
    code, output = invoked("presets", NAMES[1], "--classes", facts, "--out", tmp_path / "drawn")
    assert "largest classes" in output, "one preset alone has its clients listed too"
    assert (tmp_path / "drawn" / f"{NAMES[1]}.png").is_file()
    assert (tmp_path / "drawn" / f"{NAMES[1]}-classes.png").is_file()


def test_a_preset_is_explained() -> None:
    code, output = invoked("presets", "michieli2021-voc-0.1", "michieli2021-mnist-50")
    assert code == 0, output
    words = " ".join(output.split())
    for each in (
        "figure 5, VOC, 20 classes, α = 0.1",
        "model.norm=frozen --init FILE, torchvision's of MobileNet-V2",
        "6,665 examples, 66.7 ± 25.7 a client",
        "VOCtrainval_11-May-2012.tar",
        "--set partition.gamma=3",
        "with fedprox --set mu=1.0",
    ):
        assert each in words


def test_wrong_words_are_answered(facts: Path) -> None:
    code, output = invoked("presets", "michieli2021-voc-0.2")
    assert (code, "unknown preset 'michieli2021-voc-0.2'; did you mean" in output) == (2, True)
    code, output = invoked("presets", "michieli2021-mnist-50", "--classes", facts)
    assert (code, "michieli2021-mnist-50 divides mnist; --classes is of the images of voc2012" in output) == (2, True)


def test_without_images_a_run_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, output = invoked(
        "run", "--preset", "michieli2021-voc-0.1", "--data-root", tmp_path / "empty", "--out", tmp_path / "run"
    )
    assert code == 2
    assert "VOCdevkit/VOC2012/ with JPEGImages/NAME.jpg" in " ".join(output.split())
    assert "SegmentationClassAug" in output
    code, output = invoked("run", "--preset", "michieli2021-voc-0.1", "--out", tmp_path / "run")
    assert (code, "VOCtrainval_11-May-2012.tar of host.robots" in " ".join(output.split())) == (2, True)


@pytest.mark.ci
def test_a_preset_runs_small_and_shows_masks(tmp_path: Path) -> None:
    unpacked(voc_squares(24), tmp_path / "data")
    small = ["data.height=32", "data.width=32", "partition.clients=3", "partition.examples=null", "model.width=0.25"]
    code, output = invoked(
        "run", "--preset", "michieli2021-voc-macro-0.1", "--data-root", tmp_path / "data", "--out", tmp_path / "run",
        "--rounds", "2",
        "--clients-per-round", "2", *[word for text in small for word in ("--set", text)],
    )  # fmt: skip
    assert code == 0, output
    assert "mIoU" in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 <= summary["personalization"]["mean_iou"]["mean"] <= 1
    assert (tmp_path / "run" / "plots" / "images.png").is_file()
