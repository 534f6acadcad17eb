"""Each of the device's threads is failed in a way that nobody expected; it is heard of, and works again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from edge_agent.config.brokers import BrokerSection
from edge_agent.config.settings import ConditionsSection
from edge_agent.http_server import BoundedServer
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import BlobFailed, CollectingPaused, CollectingResumed, DataReady, Disconnected
from edge_agent.sensors.source import ThreadedSource
from edge_agent.serving.classifier import Classifier
from edge_agent.storage.credentials import Login
from edge_agent.supervisor.background_tasks import BackgroundTasks, Evaluated
from edge_agent.supervisor.conditions.watcher import ConditionWatcher
from edge_agent.supervisor.metrics import gauges
from edge_agent.training.job import JobEnded, TrainingProcess
from edge_agent.transport.link import LinkOptions
from edge_agent.transport.mqtt import Broker
from edge_agent.transport.renewal import CredentialRenewal
from federation.plan import Plan
from federation.protocol.messages import BlobPointer
from gaitway.threads import thread_failures
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.supervised import SupervisedDevice, run, until
from tests.edge_agent.transport.test_http_link import Connected, Device, Server
from tests.gaitway.failing_work import failing_once

pytestmark = pytest.mark.usefixtures("restarts_at_once")


class Board(ThreadedSource):
    """Fails at first, as a driver with a bug does, and then delivers."""

    tries = 0

    def collect(self, plan: Plan, stop: threading.Event) -> None:
        self.tries += 1
        if self.tries < 3:
            raise IndexError("list index out of range")
        self.post(DataReady(7))


def test_a_sensor_source_with_a_bug_is_told_of_and_begins_again(tmp_path: Path) -> None:
    posted = queue.SimpleQueue[Any]()
    source = Board(make_config(tmp_path), posted.put)
    source.start(make_plan())
    events = [posted.get(timeout=60) for _ in range(5)]
    assert [type(event) for event in events] == [CollectingPaused, CollectingResumed] * 2 + [DataReady]
    assert "the sensor source 'recording' failed and starts again: IndexError" in events[0].reason
    source.stop()


def test_the_conditions_are_read_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.supervisor.conditions.watcher.READ_EVERY_S", 0.001)
    posted = queue.SimpleQueue[Any]()
    machine = SimpleNamespace(close=lambda: None)
    watcher = ConditionWatcher(ConditionsSection(), machine, lambda: None, posted.put)
    checked = threading.Event()
    monkeypatch.setattr(watcher, "check", lambda: None)
    watcher.start()
    monkeypatch.setattr(watcher, "check", failing_once(checked.set, OverflowError("a sensor of the board")))
    assert checked.wait(60)
    watcher.stop()
    assert thread_failures.counts() == {"conditions": 1}


def test_a_model_is_loaded_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()

    def load(path: Path, *, threads: int) -> None:
        loaded.set()

    monkeypatch.setattr("edge_agent.serving.classifier.Session.load", failing_once(load, RuntimeError("a bug")))
    classifier = Classifier(tmp_path)
    classifier.start()
    classifier.serve({"path": "model.onnx"})
    assert loaded.wait(60)
    until(lambda: classifier.loaded)
    classifier.stop()
    assert thread_failures.counts() == {"inference": 1}


def make_link(posted: queue.SimpleQueue[Any], login: Callable[[], Login]) -> Broker:
    renewal: Any = SimpleNamespace(login=login, taken=lambda: None, claim_problem="", login_refused=lambda who: False)
    section = BrokerSection(host="127.0.0.1", port=1)
    return Broker(section, LinkOptions("f", "d", 2, posted.put, renewal, lambda kind, data: data))


def test_the_link_connects_again_after_a_failure() -> None:
    posted, tried = queue.SimpleQueue[Any](), threading.Event()

    def login() -> Login:
        tried.set()
        return Login("d", None, None)

    link = make_link(posted, failing_once(login, TypeError("a bug")))
    link.start()
    assert tried.wait(60)
    link.stop()
    assert "failed unexpectedly and is being reopened: TypeError: a bug" in posted.get(timeout=60).reason
    assert thread_failures.counts() == {"link": 1}


class Library:
    """Stands in for paho's client: it is connected at once, and calls back when the test says so."""

    made: ClassVar[list[Any]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self.on_message: Any = None
        Library.made.append(self)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def test_a_message_that_nobody_expected_does_not_leave_a_dead_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.transport.mqtt.paho.Client", Library)
    monkeypatch.setattr("edge_agent.transport.link.MIN_WAIT_S", 0.001)
    monkeypatch.setattr(Library, "made", [])
    posted = queue.SimpleQueue[Any]()
    link = make_link(posted, lambda: Login("d", None, None))
    link.start()
    until(lambda: Library.made and Library.made[0].on_message)
    Library.made[0].on_message(None, None, None)  # as paho calls it, on a thread that an exception would end
    assert "failed unexpectedly and is being reopened: AttributeError" in posted.get(timeout=60).reason
    until(lambda: len(Library.made) > 1)
    link.stop()
    assert thread_failures.counts() == {"mqtt": 1}


def test_a_post_that_fails_ends_the_connection_which_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    device = Device(server, start=False)
    monkeypatch.setattr(device.link, "next_post", failing_once(device.link.next_post, ValueError("a bug")))
    device.link.start()
    device.next(Connected)
    assert "posting failed unexpectedly: ValueError: a bug" in device.next(Disconnected).reason
    device.next(Connected)
    device.link.stop(say_offline=False)
    server.close()


def test_downloads_and_judgements_that_fail_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, posted = make_config(tmp_path), queue.SimpleQueue[Any]()
    tasks = BackgroundTasks(config, CredentialRenewal(config), posted.put)
    wrong = failing_once(lambda *_: None, IndexError("a bug"))
    monkeypatch.setattr("edge_agent.supervisor.background_tasks.BlobDownloader.fetch", wrong)
    tasks.fetch(BlobPointer(sha256="0" * 64, size=1, url="/none"))
    assert posted.get(timeout=60) == BlobFailed("0" * 64, "IndexError: a bug")
    monkeypatch.setattr(
        "edge_agent.supervisor.background_tasks.evaluate_job", failing_once(lambda *_: None, IndexError("a bug"))
    )
    tasks.evaluate(make_plan(), "memory", Evaluate(3, "train"))
    answer = posted.get(timeout=60)
    assert isinstance(answer, Evaluated)
    assert answer.verdict.answer == "failed"
    assert "round 3: the candidate can't be evaluated: IndexError: a bug" in answer.verdict.reason


def test_a_training_process_that_cannot_be_followed_is_told_of(tmp_path: Path) -> None:
    posted = queue.SimpleQueue[Any]()
    job: Any = SimpleNamespace(out=tmp_path / "job" / "out", model_dump_json=lambda: "{}", memory_mb=0)
    process = TrainingProcess(job, 60.0, failing_once(posted.put, ValueError("a bug")), program="json.tool")
    assert posted.get(timeout=60) == JobEnded(job, "its training process could not be followed: ValueError: a bug")
    process.stop(60.0)


def test_a_servers_thread_that_fails_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from http.server import BaseHTTPRequestHandler

    served = threading.Event()
    server = BoundedServer("127.0.0.1", 0, BaseHTTPRequestHandler)
    serve = server.serve_forever

    def again(poll: float = 0.2) -> None:
        served.set()
        serve(poll)

    monkeypatch.setattr(server, "serve_forever", failing_once(again, RuntimeError("a bug")))
    server.begin("page")
    assert served.wait(60)
    server.close()
    assert thread_failures.counts() == {"page": 1}


@pytest.mark.parametrize("supervised_device", [2], indirect=True)
def test_status_and_metrics_tell_of_a_failure(supervised_device: SupervisedDevice) -> None:
    def play() -> None:
        thread_failures.record("sensors", IndexError("list index out of range"), 2.0)
        until(lambda: supervised_device.status_says("The thread 'sensors' failed once, last "))

    run(supervised_device.supervisor, play)
    figures = gauges(supervised_device.supervisor.agent, supervised_device.folder)
    assert any(each.name == "gaitway_device_thread_failures" and "sensors" in each.label for each in figures)
