"""The model at work: live windows are classified through everything that can happen to a device."""

from __future__ import annotations

import json
import os
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_agent.errors import StoreError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import Announced, DataReady, Disconnected, Event, NewWindows
from edge_agent.sensors import open_source
from edge_agent.serving.classifier import FILE_NAME, Classifier, describe_live
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.state_store import StateStore
from har_pipeline import Window
from har_pipeline.signals.wear import NOT_WORN
from tests.edge_agent.factories import announcement, make_config, make_plan
from tests.edge_agent.serving.test_acceptance import LABELS, candidate, holdout, judge
from tests.edge_agent.supervised import SupervisedDevice, run, until


def window(label: int, at_s: float = 0.0, length: int = 128) -> Window:
    x = np.zeros((length, 6), np.float32)
    x[:, label] = 5.0
    return Window(x=x, y=-1, start_s=at_s, session=0)


def model(folder: Path, number: int = 1) -> dict[str, Any]:
    """A good model on a device's shelf."""
    store = StateStore(folder)
    shelf = ModelRegistry(store)
    shelf.commit(judge(candidate(folder / f"job{number}", scale=number), Evaluate(number, "train"), holdout(), None))
    present = shelf.present()
    store.close()
    assert present is not None
    return present


@pytest.fixture
def classifier(tmp_path: Path) -> Any:
    made = Classifier(tmp_path)
    made.start()
    yield made
    made.stop()


def test_windows_are_classified_by_the_model_that_is_served(
    tmp_path: Path, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.serving.classifier.WRITE_EVERY_S", 3600.0)  # once
    classifier.submit([window(0)])  # there is no model yet
    until(lambda: classifier.waiting == 0)
    assert describe_live(tmp_path) == []
    classifier.serve(model(tmp_path))
    until(lambda: classifier.loaded)
    for label in (1, 2):
        before = classifier.count
        classifier.submit([window(0), window(label, at_s=7.5)])
        until(lambda before=before: classifier.count == before + 2)
        assert classifier.latest is not None
        assert (classifier.latest.label, classifier.latest.start_s) == (LABELS[label], 7.5)
    seen, last = classifier.recent()
    assert [(one.label, one.start_s) for one in seen] == [(LABELS[1], 7.5), (LABELS[2], 7.5)]
    assert last is not None
    assert last.x[0, 2] == 5.0
    (words,) = describe_live(tmp_path)
    assert words.startswith("It sees run (")
    assert "the personalized model of round 1" in words


def test_a_model_that_cannot_be_loaded_and_windows_that_do_not_fit_leave_the_present_model_at_work(
    tmp_path: Path, classifier: Classifier
) -> None:
    good = model(tmp_path)
    classifier.serve(good)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing")
    until(lambda: classifier.loaded)
    classifier.serve({**good, "path": str(broken)})
    until(lambda: "broken.onnx cannot be loaded" in classifier.error)
    classifier.submit([window(0, length=64)])
    until(lambda: "do not fit" in classifier.error)
    classifier.submit([window(0), window(1, length=64)])
    classifier.submit([window(2)])
    until(lambda: classifier.count >= 1 or classifier.submit([window(2)]))
    assert classifier.latest is not None
    assert classifier.latest.label == "sit"


def test_windows_that_come_faster_than_they_are_classified_do_not_fill_the_memory(tmp_path: Path) -> None:
    idle = Classifier(tmp_path)  # not started: nothing is taken
    idle.submit([window(0)] * 10_000)
    assert idle.waiting == 64


def test_what_was_seen_before_a_restart_is_not_said_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"label": "walk"}')
    again = Classifier(tmp_path)
    again.start()
    again.stop()
    assert not (tmp_path / FILE_NAME).exists()


def test_a_rollback_brings_the_earlier_good_model_back_and_is_undone_by_another(tmp_path: Path) -> None:
    first = model(tmp_path, 1)
    store = StateStore(tmp_path)
    with pytest.raises(StoreError, match="no earlier good model"):
        ModelRegistry(store).rollback()
    second = model(tmp_path, 2)
    shelf = ModelRegistry(store)
    assert shelf.rollback() == shelf.present()
    assert shelf.present() == {**first, "why": store.adoptions()[-1].reason}
    assert "model of round 1: restored manually, in place of the personalized model of round 2" in (
        store.adoptions()[-1].reason
    )
    assert shelf.rollback() == shelf.present()
    second = {**second, "why": store.adoptions()[-1].reason}
    assert shelf.present() == second
    Path(first["path"]).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="missing or damaged"):
        shelf.rollback()
    assert shelf.present() == second
    store.close()


def test_a_source_at_the_pace_of_life_shows_its_windows_and_one_that_hurries_does_not(tmp_path: Path) -> None:
    for speed, shown in ((5000.0, True), ("max", False)):
        config = make_config(tmp_path / str(speed))
        sensors = config.sensors.model_copy(update={"replay_speed": speed})
        posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        source, seen = open_source(config.model_copy(update={"sensors": sensors}), posted.put), list[Event]()
        source.start(make_plan())
        while not isinstance(event := posted.get(timeout=30), DataReady):
            seen.append(event)
        source.stop(5.0)
        assert any(isinstance(event, NewWindows) for event in seen) is shown


class Steady:
    """Offers a window every few milliseconds, and says whether predictions go on."""

    def __init__(self, supervised_device: SupervisedDevice) -> None:
        self.supervised_device, self.classifier = supervised_device, supervised_device.drivers.classifier

    def goes_on(self) -> None:
        """Return once five more windows were classified."""
        enough = self.classifier.count + 5
        until(lambda: self.supervised_device.post(NewWindows((window(1),))) or self.classifier.count >= enough)


@pytest.mark.ci
@pytest.mark.parametrize("supervised_device", [2], indirect=True)
def test_predictions_go_on_while_training_is_killed_the_broker_is_away_and_a_bad_candidate_is_judged(
    supervised_device: SupervisedDevice,
) -> None:
    store = StateStore(supervised_device.folder)
    supervised_device.drivers.jobs.program = "tests.edge_agent.unresponsive_trainer"

    def play() -> None:
        steady = Steady(supervised_device)
        first = supervised_device.invite()
        good = model(supervised_device.folder)  # the invitation made the device start over
        steady.goes_on()
        os.kill(first.pid, 9)
        steady.goes_on()
        until(lambda: supervised_device.drivers.jobs.pid not in (None, first.pid))
        supervised_device.post(Disconnected("the broker is away"))
        steady.goes_on()
        supervised_device.drivers.jobs.program = "tests.edge_agent.broken_candidate_trainer"
        finished = announcement(1, "finished", plan=supervised_device.plan).model_copy(
            update={"model": supervised_device.model}
        )
        supervised_device.post(Announced(finished))
        until(lambda: supervised_device.status_of_adoption("does not work"))
        steady.goes_on()
        served = steady.classifier.loaded
        assert served is not None
        assert (served["sha256"], steady.classifier.latest.label) == (good["sha256"], "run")
        ModelRegistry(own := StateStore(supervised_device.folder)).store.put(model="", previous="")
        own.close()
        until(lambda: steady.classifier.loaded is None)  # what another process changes is taken up

    run(supervised_device.supervisor, play)
    assert json.loads((supervised_device.folder / FILE_NAME).read_bytes())["label"] == "run"
    store.close()


def test_a_device_that_nobody_wears_is_not_said_to_do_anything(tmp_path: Path, classifier: Classifier) -> None:
    classifier.serve(model(tmp_path))
    until(lambda: classifier.loaded)
    lying = [window(0, at_s=1.28 * i) for i in range(22)]
    classifier.submit(lying)
    until(lambda: classifier.count == len(lying))
    assert classifier.latest is not None
    assert (classifier.latest.label, classifier.latest.probability) == (NOT_WORN, None)
    assert [seen.label for seen in classifier.recent()[0]][-1] == NOT_WORN
    assert "sees not worn" in describe_live(tmp_path)[0]
    classifier.submit(
        [moved := window(1, at_s=1.28 * 22)._replace(x=np.tile(np.eye(6, dtype=np.float32)[:2] * 5, (64, 1)))]
    )
    until(lambda: classifier.count == len(lying) + 1)
    assert classifier.latest.label in LABELS, moved
