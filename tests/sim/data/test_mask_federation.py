"""From files of images and masks to a federation that has learnt to segment, by the command `sim run`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from federation.plan import ImageInput, Plan, live_incompatibility
from federation.tasks.segmentation import Segmentation
from gaitway.tasks import TargetKind
from models import Model, ModelOutput
from models.registry import MODELS
from sim.attacks import Attack
from sim.cli.app import app
from sim.data.federated_data import EVERYONE, FederatedData, pooled
from sim.data.images import IMAGE_SETS, LabelledImages
from sim.data.images.reader import IMAGENET, PartitionTargets
from sim.data.partitions import Dirichlet, Natural
from sim.data.repartition import current_partition
from sim.data.selection import few_shot, scaled
from sim.data.sources.images import image_federation
from sim.results.run_directory import RunDirectory
from tests.sim.data.images.layouts import grey_png, image_bytes

WIDTH = 8
LABELS = ("ground", "red", "green")
COLOURS = np.array([[120, 120, 120], [230, 40, 160], [40, 220, 150]])
CHANCE = 1 / 5
"""Mean IoU of guessing one of three equally frequent classes: each is hit in 1 of 9 pixels, and is in 5 of 9."""
SETS = ["labels=" + json.dumps(LABELS), "background=ground", "client=([a-z]+)_", "height=16", "width=16"]
TASK = Segmentation(background=0)


class Tiny(Model):
    """A network of a few hundred weights that fits the table."""

    input_kinds = ("image",)
    targets = (TargetKind.MASK,)

    def __init__(self, classes: int, *, input_shape: tuple[int, ...] = (3, 16, 16)) -> None:
        super().__init__(classes, input_shape=input_shape)
        self.input_shape, self.feature_dim = tuple(input_shape), WIDTH
        self.convolution = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.head = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        features = functional.gelu(self.convolution(x))
        return ModelOutput(features, functional.interpolate(self.head(features), size=x.shape[2:], mode="bilinear"))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", Tiny)


def squares(count: int, kinds: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images (n, 3, 16, 16) of three squares each, and masks whose outlines have no class."""
    random = np.random.default_rng(seed)
    masks = np.zeros((count, 16, 16), np.uint8)
    for mask in masks:
        for kind in random.choice(kinds, 3):
            top, left, size = *random.integers(0, 10, 2), random.integers(4, 7)
            mask[top : top + size, left : left + size] = 255
            mask[top + 1 : top + size - 1, left + 1 : left + size - 1] = kind
    clean = COLOURS[np.where(masks == 255, 0, masks)].transpose(0, 3, 1, 2)
    return np.clip(clean + 50 * random.normal(size=clean.shape), 0, 255).astype(np.uint8), masks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people's images; ann has red squares alone, bob green ones."""
    root = tmp_path_factory.mktemp("squares")
    for name in ("images", "masks"):
        (root / name).mkdir()
    for seed, (who, kinds) in enumerate({"ann": (1,), "bob": (2,), "cyd": (1, 2)}.items()):
        for k, (x, mask) in enumerate(zip(*squares(30, kinds, seed), strict=True)):
            (root / "images" / f"{who}_{k:02}.png").write_bytes(image_bytes(x))
            (root / "masks" / f"{who}_{k:02}.png").write_bytes(grey_png(mask))
    return root


def sim(folder: Path, out: Path, *words: str, data: str = "mask_folder", sets: list[str] | None = None) -> Any:
    named = [word for each in (SETS if sets is None else sets) for word in ("--set", f"data.{each}")]
    command = ["run", "--data", data, "--data-root", str(folder), "--task", "segmentation", "--model", "tiny", *named]
    return CliRunner(env={"COLUMNS": "200"}).invoke(
        app, [*command, "--batch", "8", "--lr", "0.02", "--out", str(out), "--engine", "serial", *words]
    )


@pytest.mark.ci
def test_a_folder_of_images_and_masks_is_learnt(folder: Path, tmp_path: Path) -> None:
    done = sim(folder, tmp_path / "run", "--partition", "natural", "--rounds", "8")
    assert done.exit_code == 0, done.output
    run = RunDirectory(tmp_path / "run")
    assert run.summary is not None
    assert run.summary.last.global_ is not None
    assert run.summary.last.global_["mean_iou"] > 3 * CHANCE
    assert {name: client.train_per_class for name, client in run.clients.items()} == {
        "ann": (0, 22, 0), "bob": (0, 0, 22), "cyd": run.clients["cyd"].train_per_class,
    }  # fmt: skip
    assert [client.test for client in run.clients.values()] == [6] * 3
    page = (tmp_path / "run" / "report.html").read_text()
    assert "test pixels" in page
    plan = Plan.model_validate_json((tmp_path / "run" / "plan.json").read_text())
    assert plan.task["name"] == "segmentation"
    assert plan.data.input == ImageInput(shape=(3, 16, 16), fit="pad")
    assert live_incompatibility(plan) is None
    larger = [*SETS, "height=32", "width=32"]
    words = ("--partition", "natural", "--plan", str(tmp_path / "run" / "plan.json"), "--model", "segmenter_small")
    refused = sim(folder, tmp_path / "other", *words, sets=larger)
    assert "images of (3, 16, 16) (channels, height, width), fit pad; mask_folder gives (3, 32" in refused.output


def test_a_task_that_learns_other_targets_is_refused_before_files_are_looked_for(tmp_path: Path) -> None:
    for data, sets, words, said in (
        (
            "mask_folder",
            SETS,
            ("--task", "classification", "--model", "dense"),
            "mask_folder has a class per pixel",
        ),
        ("mask_folder", SETS, ("--task", "classification"), "a class per pixel, but classification learns another"),
        (
            "mnist",
            [],
            ("--task", "segmentation"),
            "mnist has one class per example, but segmentation learns another target",
        ),
        ("mask_folder", SETS, ("--set", "task.ignore_index=0"), "masks are read with 255 where a pixel has no class"),
    ):
        done = sim(tmp_path / "no", tmp_path / "run", "--partition", "natural", *words, data=data, sets=sets)
        assert done.exit_code == 2
        assert said in done.output


def images(labels: tuple[str, ...] = ("left", "right")) -> LabelledImages:
    """Forty images of two people, dealt by something that is not in the masks."""
    x, masks = squares(40, (1, 2), 5)
    apart = PartitionTargets(np.arange(40) % len(labels), labels)
    return LabelledImages(x, masks, LABELS, np.ones(40, bool), np.array(["ann", "bob"])[np.arange(40) // 20], apart)


def federation() -> FederatedData:
    given = images()
    return image_federation(given, Natural().divide(given.pool(TASK), 0), IMAGENET)


def test_masks_stay_bytes_and_labels_stay_apart_from_them() -> None:
    data = federation()
    assert {part.y.dtype for client in data.clients.values() for part in (client.train, client.test)} == {torch.uint8}
    assert data.labels == LABELS
    assert data.partition_labels == ("left", "right")
    shares, y = current_partition(data, TASK)
    counts = data.per_class(TASK)
    for name, share in shares.items():
        assert np.bincount(y[share.train], minlength=2).tolist() == counts[name]["train_per_class"]
    assert sum(sum(each["train_per_class"]) + sum(each["test_per_class"]) for each in counts.values()) == 40


def test_a_dirichlet_deals_by_the_label_apart() -> None:
    given = images()
    shares = Dirichlet(clients=2, alpha=0.01, minimum=4, test="split").divide(given.pool(TASK), 0)
    data = image_federation(given, shares, IMAGENET)
    for client in data.per_class(TASK).values():
        assert sorted(client["train_per_class"])[0] <= 1


def test_scaling_pooling_shots_and_attacks_keep_masks_and_labels_together() -> None:
    data = federation()
    half = scaled(data, 0.5, 0, TASK).clients["ann"]
    assert half.partition_classes is not None
    assert len(half.train.y) == len(half.partition_classes.train)
    counts = data.per_class(TASK)["ann"]["train_per_class"]
    assert np.bincount(half.partition_classes.train).tolist() == [(count + 1) // 2 for count in counts]
    whole = pooled(data)
    assert sum(whole.per_class(TASK)[EVERYONE]["train_per_class"]) == 32
    assert whole.per_class(TASK)["ann"]["train"] == 0
    shots = few_shot(TASK, data.clients["ann"], 3)
    assert shots.y.shape == (6, 16, 16)
    flipped = Attack("label_flip", frozenset({"ann"})).on_data(data).clients["ann"].train.y
    before = data.clients["ann"].train.y
    assert torch.equal(flipped == 255, before == 255)
    assert torch.equal(flipped[before != 255], 2 - before[before != 255])
    assert flipped.dtype == torch.uint8


def test_masks_of_another_size_and_labels_that_are_unknown_are_refused() -> None:
    given = images()
    for wrong, words in (
        ({"y": given.y[:, :8]}, "expected uint8 of the same height and width"),
        ({"y": given.y.astype(np.int64)}, "masks are int64"),
        (
            {"partition_targets": PartitionTargets(np.full(40, 2), ("left", "right"))},
            "labels from 2 to 2; expected 0 to 1",
        ),
        ({"partition_targets": PartitionTargets(np.zeros(3, np.int64), ("left",))}, "differ in number"),
    ):
        with pytest.raises(Exception, match=words):
            replace(given, **wrong)


@pytest.mark.ci
@pytest.mark.data
def test_camvid_is_complete(gaitway_data: Path) -> None:
    if not (gaitway_data / "camvid").is_dir():
        pytest.skip(f"{gaitway_data / 'camvid'} is not there; set GAITWAY_DATA")
    found = IMAGE_SETS["camvid"].read(gaitway_data / "camvid")
    assert found.shape == (3, 180, 240)
    assert found.client is not None
    assert found.validation is not None
    assert (int((found.train & ~found.validation).sum()), int(found.validation.sum())) == (367, 101)
    assert int((~found.train).sum()) == 233
    drives, counts = np.unique(found.client, return_counts=True)
    assert dict(zip(drives.tolist(), counts.tolist(), strict=True)) == {
        "0001TP": 124, "0006R0": 101, "0016E5": 305, "Seq05VD": 171,
    }  # fmt: skip
    pixels = np.bincount(found.y.ravel(), minlength=256)
    shares = pixels[:11] / pixels[:11].sum()
    wanted = [0.1631, 0.2496, 0.0102, 0.3055, 0.0693, 0.1158, 0.0112, 0.0148, 0.0482, 0.0066, 0.0055]
    assert np.abs(shares - wanted).max() < 1e-4
    assert pixels[255] / pixels.sum() == pytest.approx(0.0360, abs=1e-4)
    dealt = found.targets_for_partition(Segmentation())
    assert np.bincount(dealt.y[found.train], minlength=11).min() >= 20
    assert len(Dirichlet(clients=20, alpha=0.1).divide(found.pool(Segmentation()), 0)) == 20
