"""A server that was restored: what a device remembers of its rounds and releases does not bind any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.doctor.machine import server_epoch
from edge_agent.machine.commands import (
    BeginEpoch,
    FetchBlob,
    PublishStatus,
    SaveAdoptionReport,
    SendBegin,
    StopJob,
    StopSending,
)
from edge_agent.machine.events import (
    Announced,
    BlobFetched,
    CandidateEvaluated,
    CandidateReady,
    Invited,
    MessageRejected,
)
from edge_agent.machine.state import Contribution
from edge_agent.serving.model_registry import ModelRegistry
from edge_agent.storage.consent import CONTRIBUTION
from edge_agent.storage.data_folder import sha256_of
from edge_agent.storage.state_store import RELEASE_REPORT, StateStore
from edge_agent.supervisor.persistence import begin_epoch, load_agent, save_round
from edge_agent.supervisor.status import describe_device
from federation.protocol.messages import ReleaseReport, write
from tests.edge_agent.factories import DEVICE, INSTANCE, announcement, invitation, make_config, pointer
from tests.edge_agent.state_machine import A, answer, ready, training, uploading
from tests.edge_agent.storage.test_state_store import make_job

EPOCH = 1_800_000_000
BEGUN = BeginEpoch(EPOCH, round=2, at=1_800_000_000.0)


def restored(number: int = 1, state: str = "collecting") -> Announced:
    return Announced(announcement(number, state, epoch=EPOCH, restored_at=1.8e9))


def invited(number: int = 1) -> Invited:
    return Invited(invitation(number).model_copy(update={"epoch": EPOCH}))


def test_a_round_that_was_done_is_trained_again_in_a_new_epoch() -> None:
    device = uploading().on(
        answer("accepted"), CandidateReady(1, "train"), CandidateEvaluated(1, "train", "adopted", "x")
    )
    assert (1, A) in device.agent.done
    assert not device.announced(1).asked(FetchBlob)
    device.on(invited(), restored())
    assert device.asked(BeginEpoch) == [BeginEpoch(EPOCH, 1, 1.8e9)]
    assert device.asked(FetchBlob) == [FetchBlob(pointer())]
    again = device.on(BlobFetched(A), restored())
    assert not again.asked(BeginEpoch)
    assert again.agent.epoch == EPOCH


def test_an_invitation_holds_for_its_own_epoch() -> None:
    device = ready().on(Invited(invitation()), restored())
    assert not device.asked(FetchBlob)
    assert device.on(invited()).asked(FetchBlob)


def test_what_was_under_way_is_dropped() -> None:
    device = training().on(restored(0, "waiting"))
    assert device.asked(StopJob)
    assert (device.agent.work, device.agent.done) == (None, frozenset())
    device = uploading().on(answer("send")).on(restored(0, "waiting"))
    assert device.asked(StopSending)
    assert (device.agent.upload, device.agent.outbox) == (None, ())
    assert not device.on(answer("accepted")).asked(SendBegin)


def test_releases_of_the_same_number_are_others_and_reports_say_their_epoch() -> None:
    device = uploading().on(answer("accepted"), CandidateReady(1, "train"))
    device.on(CandidateEvaluated(1, "train", "adopted", "x"))
    assert [command.report.epoch for command in device.asked(SaveAdoptionReport)] == [1]
    device.on(invited(), restored(), BlobFetched(A))
    assert (device.agent.using, device.agent.report, device.agent.order) == (0, None, None)


def test_what_is_not_believed_is_said_and_forgotten_with_the_next_word_that_is() -> None:
    device = ready().on(MessageRejected("the announcement is not signed"))
    assert device.asked(PublishStatus)[-1].status.detail == "the announcement is not signed"
    device.on(Announced(announcement(0, "waiting", None, created=1.0)))
    assert device.asked(PublishStatus)[-1].status.detail == ""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    found = StateStore(tmp_path)
    yield found
    found.close()


def test_a_new_epoch_is_durable_and_says_what_happened(store: StateStore, tmp_path: Path) -> None:
    for number in (2, 5):
        kept = save_round(store, make_job(make_config(tmp_path), number))
    assert len(load_agent(store).done) == 2
    model = tmp_path / "models" / "m.onnx"
    model.parent.mkdir()
    model.write_bytes(b"x")
    noted = {"path": str(model), "sha256": sha256_of(model), "rollout": 3, "round": 1, "source": "global"}
    store.put(model=json.dumps(noted), **{RELEASE_REPORT: write(_report()).decode()})
    begin_epoch(store, BEGUN)
    ModelRegistry(store).forget_rollouts()
    agent = load_agent(store)
    assert (agent.epoch, agent.done, agent.outbox, agent.report) == (EPOCH, frozenset(), (), None)
    assert store.release_report() is None
    assert (ModelRegistry(store).present() or {}).keys() == noted.keys() - {"rollout"}
    assert not (tmp_path / "outbox" / kept.update_id).exists()
    assert [(row.epoch, row.round, row.status) for row in store.rounds()] == [(1, 2, "refused"), (1, 5, "refused")]
    said = " ".join(describe_device(store, DEVICE, running=False)) or ""
    assert said == f"{DEVICE} has not done anything yet."
    store.put(doing='{"words": "idle", "left": true, "at": 0}')
    said = " ".join(describe_device(store, DEVICE, running=False))
    assert (
        f"restored from a backup on 2027-01-15 08:00:00 UTC, when it began epoch {EPOCH}: it stood at round 2" in said
    )
    assert "this device had trained up to round 5" in said
    (finding,) = server_epoch(make_config(tmp_path))
    assert "restored from a backup" in finding.message
    save_round(store, make_job(make_config(tmp_path), 2))
    assert load_agent(store).done == {(2, "a" * 64)}
    assert len(store.rounds()) == 3


@pytest.mark.parametrize("sent", ["sums", "withdrawn"])
def test_what_a_restored_server_has_of_a_device_is_unknown_also_after_a_restart(sent: str, store: StateStore) -> None:
    begin_epoch(store, BEGUN)
    assert load_agent(store).contribution is None, "it never sent anything"
    store.put(**{CONTRIBUTION: json.dumps({"kind": sent, "update_id": "s1", "keys": ""})})
    begin_epoch(store, BEGUN)
    assert load_agent(store).contribution == Contribution("unknown")


def _report() -> ReleaseReport:
    return ReleaseReport(instance=INSTANCE, rollout=3, answer="adopted")
