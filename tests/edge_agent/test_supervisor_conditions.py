"""A supervisor with a real training process, on a machine whose conditions the test sets."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge_agent import jobs
from edge_agent.condition_watch import ConditionWatch
from edge_agent.conditions import Conditions
from edge_agent.config import ConditionsSection, TrainingSection
from edge_agent.events import Announced, Connected, Invited
from edge_agent.files import write_file
from edge_agent.jobs import CHECKPOINTS
from edge_agent.store import Store
from edge_agent.summary import in_words
from edge_agent.supervisor import Supervisor
from federation import wire
from federation.protocol.messages import BlobPointer
from har_pipeline import ClientWindows
from tests.edge_agent.reference import Federation, assert_same
from tests.edge_agent.scene import DEVICE, announcement, invitation, make_config, make_plan

GOOD = Conditions(charging=True, temperature_c=60.0)


class Machine:
    """Says of itself what the test wants."""

    def __init__(self) -> None:
        self.found = GOOD

    def read(self, training: int | None = None) -> Conditions:
        return self.found

    def close(self) -> None:
        pass


class Director(threading.Thread):
    """Plays the world around a supervisor that runs in the test's own thread, and stops it in the end."""

    def __init__(self, supervisor: Supervisor, play: Callable[[], None]) -> None:
        super().__init__()
        self.supervisor, self.play, self.failure = supervisor, play, None

    failure: BaseException | None

    def run(self) -> None:
        try:
            self.play()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.supervisor.stop()


def until(happened: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def run(supervisor: Supervisor, play: Callable[[], None]) -> None:
    director = Director(supervisor, play)
    director.start()
    supervisor.run()
    director.join()
    if director.failure:
        raise director.failure


class Scene:
    """A supervisor whose federation has invited it, with its broadcast on disk, and the machine that it runs on."""

    def __init__(self, folder: Path, epochs: int) -> None:
        plan = make_plan()
        self.plan = plan.model_copy(update={"task": plan.task.model_copy(update={"epochs": epochs})})
        self.folder, self.machine, self.federation = folder, Machine(), Federation(self.plan)
        data = wire.encode(self.federation.broadcast)
        write_file(folder / "blobs" / wire.digest(data), data)
        self.model = BlobPointer(sha256=wire.digest(data), size=len(data), url="/none")
        settings = {"conditions": ConditionsSection(), "training": TrainingSection(nice=10, memory_mb=1024)}
        self.supervisor = Supervisor(make_config(folder).model_copy(update=settings))
        self.post = self.supervisor._posted.put
        self.supervisor._conditions = ConditionWatch(
            ConditionsSection(), self.machine, self.supervisor._training, self.post
        )

    def invite(self) -> psutil.Process:
        """Tell the supervisor of round 1, and wait for its training process."""
        self.post(Connected())
        self.post(Invited(invitation(1).model_copy(update={"model": self.model})))
        self.post(Announced(announcement(1, plan=self.plan).model_copy(update={"model": self.model})))
        return psutil.Process(until(self.supervisor._training))

    def status_says(self, words: str) -> bool:
        """Whether the status says so, asked as another program asks."""
        store = Store(self.folder)
        lines = in_words(store, DEVICE, running=True)
        store.close()
        return any(words in line for line in lines)


@pytest.fixture
def scene(device: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    return Scene(Path(shutil.copytree(device, tmp_path / "device")), request.param)


@pytest.mark.parametrize("scene", [2], indirect=True)
def test_a_training_process_that_does_not_listen_is_gone_within_two_seconds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PROGRAM", "tests.edge_agent.stubborn")

    def play() -> None:
        first = scene.invite()
        until(lambda: first.status() == psutil.STATUS_SLEEPING)
        broken_at = time.monotonic()
        scene.machine.found = replace(GOOD, temperature_c=85.0)
        until(lambda: not first.is_running())
        assert time.monotonic() - broken_at < 2.0
        until(lambda: scene.status_says("not training for round 1: it is 85 °C hot, the limit is 75 °C"))
        scene.machine.found = replace(GOOD, temperature_c=76.0)  # cool enough to go on, not to begin
        time.sleep(1.2)
        assert scene.supervisor._training() is None
        scene.machine.found = GOOD
        until(scene.supervisor._training)

    run(scene.supervisor, play)


@pytest.mark.parametrize("scene", [2], indirect=True)
def test_a_device_that_nobody_has_invited_says_that_it_would_not_train(scene: Scene) -> None:
    scene.machine.found = replace(GOOD, metered=True)

    def play() -> None:
        until(lambda: scene.status_says("It would not train now: its network connection is metered."))
        scene.machine.found = GOOD
        until(lambda: not scene.status_says("It would not train now"))

    run(scene.supervisor, play)


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("scene", [60], indirect=True)
def test_real_training_is_stopped_and_goes_on_to_the_same_bits(scene: Scene, prepared: ClientWindows) -> None:
    folder, federation = scene.folder, scene.federation

    def play() -> None:
        first = scene.invite()
        until(lambda: list((folder / CHECKPOINTS).glob("*")))
        assert first.nice() == 10
        assert first.rlimit(psutil.RLIMIT_DATA)[0] == 1024 << 20
        broken_at = time.monotonic()
        scene.machine.found = replace(GOOD, charging=False)
        until(lambda: not first.is_running())
        assert time.monotonic() - broken_at < 2.0
        until(lambda: scene.status_says("not training for round 1: it is not charging"))
        assert list((folder / CHECKPOINTS).glob("*"))
        scene.machine.found = GOOD
        store = Store(folder)
        until(store.outbox, 120.0)
        store.close()

    run(scene.supervisor, play)
    store = Store(folder)
    (update,) = store.outbox().values()
    store.close()
    expected = federation.round(federation.joined, prepared, 1)
    assert_same(wire.decode(update.read_bytes(), limit_bytes=1 << 24), expected.upload)
    assert not (folder / CHECKPOINTS).exists()
