"""A supervisor with a real training process, on a machine whose conditions the test sets."""

from __future__ import annotations

import time
from dataclasses import replace

import psutil
import pytest

from edge_agent.storage.state_store import StateStore
from edge_agent.training.job import CHECKPOINTS
from federation import wire
from har_pipeline import ClientWindows
from tests.edge_agent.reference import assert_same
from tests.edge_agent.supervised import GOOD, Scene, run, until


@pytest.mark.parametrize("scene", [2], indirect=True)
def test_a_training_process_that_does_not_listen_is_gone_within_two_seconds(scene: Scene) -> None:
    scene.drivers.jobs.program = "tests.edge_agent.stubborn"

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
        assert scene.drivers.jobs.pid is None
        scene.machine.found = GOOD
        until(lambda: scene.drivers.jobs.pid)

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
        store = StateStore(folder)
        until(store.outbox, 120.0)
        store.close()

    run(scene.supervisor, play)
    store = StateStore(folder)
    (update,) = store.outbox().values()
    store.close()
    expected = federation.round(federation.joined, prepared, 1)
    assert_same(wire.decode(update.read_bytes(), limit_bytes=1 << 24), expected.upload)
    assert not (folder / CHECKPOINTS).exists()
