"""Images and masks from a folder into the store, and back as examples."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_agent.config.sensors import WindowsSection
from edge_agent.config.settings import AgentSection, Config, SensorsSection, ServerSection
from edge_agent.machine.events import DataReady, Event, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.storage.images import ImagePreparation
from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import preparation, read_local_data
from federation.plan import Plan
from tests.edge_agent.factories import make_plan
from tests.live import shapes

SHAPE = (3, 24, 24)


def plan_of(task: dict[str, Any] | None = None, labels: tuple[str, ...] = shapes.LABELS, shape: Any = SHAPE) -> Plan:
    values = make_plan().model_dump()
    values |= {"labels": labels, "task": task or {"name": "classification"}, "data": {"input": {"shape": shape}}}
    return Plan.model_validate(values)


def config_of(folder: Path, path: Path, **sensors: Any) -> Config:
    return Config(
        agent=AgentSection(device="ada", federation="demo", data_dir=folder / "device"),
        server=ServerSection(url="http://127.0.0.1:9"),
        sensors=SensorsSection(**{"source": "images", "path": path, **sensors}),
    )


def collected(config: Config, plan: Plan) -> Event:
    """Run the source until it says what there is."""
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = open_source(config, posted.put)
    source.start(plan)
    try:
        return posted.get(timeout=60)
    finally:
        source.stop(5.0)


def assert_ready(event: Event, count: int) -> None:
    """Expect so many images to train on, each with a number of its own."""
    assert isinstance(event, DataReady), event
    assert (event.noun, event.examples, len(event.keys)) == ("images", count, count)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WindowStore]:
    folder = tmp_path / "device"
    folder.mkdir()
    with closing(WindowStore(folder)) as found:
        yield found


def read_back(config: Config, plan: Plan) -> Any:
    with closing(WindowStore(config.agent.data_dir)) as store:
        return read_local_data(store, "ada", preparation(config.sensors, plan), plan)


def test_images_come_back_with_their_pixels_and_classes(tmp_path: Path) -> None:
    path, plan = shapes.write_classes(tmp_path / "images", 5, seed=1), plan_of()
    config = config_of(tmp_path, path)
    assert_ready(collected(config, plan), 12)
    data = read_back(config, plan)
    assert data.holdout.y.tolist() == [0, 1, 2]
    expected = [np.asarray(Image.open(path / name / "0004.png")).transpose(2, 0, 1) / 255 for name in plan.labels]
    assert data.holdout.x == pytest.approx(np.stack(expected), abs=1e-7)
    pixels = data.train.x.astype(np.float64)
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)), rel=1e-6)
    assert data.std == pytest.approx(pixels.std((0, 2, 3)), rel=1e-5)
    normalized = data.normalized(data.train)
    assert normalized.shape == data.train.x.shape
    assert normalized.mean((0, 2, 3)) == pytest.approx(0, abs=1e-5)


def test_a_second_look_takes_what_is_new_and_what_has_changed(tmp_path: Path) -> None:
    path, plan = shapes.write_classes(tmp_path / "images", 5, seed=1), plan_of()
    config = config_of(tmp_path, path)
    collected(config, plan)
    Image.new("RGB", (30, 20), (255, 0, 0)).save(path / "disc" / "0002.png")
    Image.new("L", (8, 8), 128).save(path / "disc" / "new.jpg")
    (path / "disc" / "torn.png").write_bytes(b"\x89PNG")
    (path / "stray.png").write_bytes((path / "disc" / "0001.png").read_bytes())
    assert_ready(collected(config, plan), 13)
    with closing(WindowStore(config.agent.data_dir)) as store:
        assert store.counts() == {"cross": 5, "disc": 6, "frame": 5}
        assert "torn.png isn't a readable image" in store.get("skipped")
        assert "stray.png" in store.get("skipped")
        x = store.read("ada", ImagePreparation(SHAPE), plan.labels).x
    assert (x == np.array([1, 0, 0], np.float32)[:, None, None]).all((1, 2, 3)).sum() == 1


def test_a_plan_that_pads_keeps_the_shape_of_images_and_masks(tmp_path: Path) -> None:
    path = shapes.write_masks(tmp_path / "images", 12, seed=1)
    plan = plan_of({"name": "segmentation"}, labels=("none", *shapes.LABELS), shape=(3, 24, 48))
    assert plan.data.input is not None
    padded = plan.data.model_copy(update={"input": plan.data.input.model_copy(update={"fit": "pad"})})
    plan = plan.model_copy(update={"data": padded})
    config = config_of(tmp_path, path)
    collected(config, plan)
    data = read_back(config, plan)
    assert (data.train.x[..., :12] == np.float32(128) / np.float32(255)).all()
    assert (data.train.targets[..., 36:] == 255).all()
    files = {np.asarray(Image.open(path / "masks" / f"{i:04d}.png")).tobytes() for i in range(12)}
    assert {mask[:, 12:36].tobytes() for mask in data.train.targets.astype(np.uint8)} <= files
    assert preparation(config.sensors, plan).input_spec((0.0,) * 3, (1.0,) * 3).fit == "pad"


def test_masks_come_back_beside_their_images(tmp_path: Path) -> None:
    path = shapes.write_masks(tmp_path / "images", 12, seed=1)
    plan = plan_of({"name": "segmentation", "background": 0}, labels=("none", *shapes.LABELS))
    config = config_of(tmp_path, path)
    assert_ready(collected(config, plan), 9)
    data = read_back(config, plan)
    masks = np.concatenate([data.train.targets, data.holdout.targets])
    files = [np.asarray(Image.open(path / "masks" / f"{i:04d}.png")) for i in range(12)]
    assert {mask.tobytes() for mask in masks.astype(np.uint8)} == {mask.tobytes() for mask in files}
    bright = data.holdout.x.max(1) > 0.85  # a shape is brighter than what lies behind it
    assert ((data.holdout.targets > 0) == bright).mean() > 0.99
    assert [int(np.unique(mask).max()) for mask in data.holdout.targets] == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda path: (path / "masks" / "0000.png").unlink(), "there is no mask masks/0000.png"),
        (lambda path: Image.new("L", (24, 24), 9).save(path / "masks" / "0000.png"), "has pixel values [9]"),
        (lambda path: Image.new("L", (24, 24), 255).save(path / "masks" / "0000.png"), "no pixel of"),
        (lambda path: Image.new("RGB", (24, 24)).save(path / "masks" / "0000.png"), "a palette or grey PNG"),
        (lambda path: Image.new("L", (24, 12), 1).save(path / "masks" / "0000.png"), "12 pixels, its image 24"),
    ],
)
def test_an_image_without_a_usable_mask_is_left_out_and_said(tmp_path: Path, wrong: Any, words: str) -> None:
    path = shapes.write_masks(tmp_path / "images", 6, seed=1)
    wrong(path)
    plan = plan_of({"name": "segmentation"}, labels=("none", *shapes.LABELS))
    config = config_of(tmp_path, path)
    collected(config, plan)
    with closing(WindowStore(config.agent.data_dir)) as store:
        assert words in store.get("skipped")
        assert sum(store.counts().values()) == 5


def test_a_mask_that_comes_later_or_is_mended_is_taken_at_the_next_look(tmp_path: Path) -> None:
    """Who copies a folder copies its images first."""
    path = shapes.write_masks(tmp_path / "images", 6, seed=1)
    late, mended = path / "masks" / "0000.png", path / "masks" / "0001.png"
    content = late.read_bytes()
    late.unlink()
    plan = plan_of({"name": "segmentation"}, labels=("none", *shapes.LABELS))
    config = config_of(tmp_path, path)
    collected(config, plan)
    late.write_bytes(content)
    Image.new("L", (24, 24), 2).save(mended)
    collected(config, plan)
    with closing(WindowStore(config.agent.data_dir)) as store:
        assert store.get("skipped") == "{}"
        assert sum(store.counts().values()) == 6
    data = read_back(config, plan)
    masks = np.concatenate([data.train.targets, data.holdout.targets])
    assert (masks == 2).all((1, 2)).sum() == 1


def test_a_task_without_labels_takes_images_of_no_class_too(tmp_path: Path) -> None:
    path = shapes.write_classes(tmp_path / "images", 5, seed=1)
    for i in range(5):
        (path / f"{i}.png").write_bytes((path / "disc" / f"{i:04d}.png").read_bytes())
    config, plan = config_of(tmp_path, path), plan_of({"name": "masked_reconstruction"})
    assert_ready(collected(config, plan), 16)
    assert sorted(np.unique(read_back(config, plan).train.targets)) == [0, 1, 2, 3]


def test_images_for_a_federation_of_motion_are_refused_in_words(tmp_path: Path) -> None:
    path = shapes.write_classes(tmp_path / "images", 1, seed=1)
    event = collected(config_of(tmp_path, path), make_plan())
    assert isinstance(event, SensorFailed)
    assert "learns from windows of motion sensors, but [sensors] source = 'images' delivers images" in event.reason
    event = collected(config_of(tmp_path, path, source="recording"), plan_of())
    assert isinstance(event, SensorFailed)
    assert "learns from images" in event.reason


def test_the_oldest_of_the_largest_class_go_first_and_their_masks_with_them(store: WindowStore, tmp_path: Path) -> None:
    path = shapes.write_masks(tmp_path / "images", 9, seed=1)
    plan = plan_of({"name": "segmentation", "background": 0}, labels=("none", *shapes.LABELS))
    config = config_of(tmp_path, path).model_copy(update={"windows": WindowsSection(max_labelled=6)})
    collected(config, plan)
    assert store.counts() == dict.fromkeys(shapes.LABELS, 2)
    with store.reading() as db:
        assert db.execute("SELECT COUNT(*) FROM masks").fetchone() == (6,)
