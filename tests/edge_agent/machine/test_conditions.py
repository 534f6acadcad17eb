"""The state machine under conditions that forbid training: it waits, stops, and takes up again where it was."""

from __future__ import annotations

from edge_agent.machine.commands import Evaluate, Exit, FetchBlob, Log, PublishStatus, SkipRound, StartJob, StopJob
from edge_agent.machine.events import (
    Announced,
    BlobFetched,
    CandidateReady,
    JobFailed,
    Tick,
    TrainingConditions,
    TrainingFinished,
)
from edge_agent.machine.state import Stage, status_of
from federation.protocol.messages import ModelRefusal
from tests.edge_agent.factories import announcement, pointer
from tests.edge_agent.state_machine import A, B, Device, ready, training, uploading

COLD = TrainingConditions(("its battery is at 30 %, below 50 %",), ("its battery is at 30 %, below 50 %",))
WARM = TrainingConditions(("its temperature is 80 °C; the limit is 75 °C",), ())
FINE = TrainingConditions()


def stage(device: Device) -> Stage | None:
    return device.agent.work and device.agent.work.stage


def test_an_invitation_waits_until_the_device_may_train_and_says_why() -> None:
    device = ready().on(COLD).announced(1)
    assert not device.asked(FetchBlob)
    assert "its battery is at 30 %" in device.asked(Log)[-1].text
    said = device.asked(PublishStatus)[-1].status
    assert (said.state, said.detail) == ("ready", "not training for round 1: its battery is at 30 %, below 50 %")
    assert not device.on(COLD, Tick(), at=1000.0).asked(FetchBlob)
    assert device.on(FINE).asked(FetchBlob) == [FetchBlob(pointer())]
    assert device.status == "training"
    assert device.on(BlobFetched(A)).asked(StartJob)


def test_training_stops_when_it_may_not_go_on_and_costs_no_try() -> None:
    device = training(attempts=1).on(COLD)
    assert [command.reason for command in device.asked(StopJob)] == ["its battery is at 30 %, below 50 %"]
    assert (stage(device), device.status) == (Stage.BLOCKED, "ready")
    device.on(FINE)
    assert device.asked(FetchBlob)
    assert device.on(BlobFetched(A)).asked(StartJob)[0].round == 1
    assert not device.on(COLD, FINE).asked(SkipRound)


def test_what_only_forbids_a_beginning_does_not_stop_training() -> None:
    device = training().on(WARM)
    assert (device.asked(StopJob), stage(device)) == ([], Stage.TRAINING)
    device.on(TrainingFinished(1, "u1"), CandidateReady(1, "train")).announced(2, "b")
    device.on(JobFailed(2, "train", "late word of another job"))
    assert device.agent.work is not None
    assert device.agent.work.round == 1  # it is being judged


def test_a_download_under_way_is_not_trained_on_after_conditions_have_changed() -> None:
    device = ready().announced(1).on(COLD)
    assert stage(device) is Stage.BLOCKED
    assert not device.on(BlobFetched(A)).asked(StartJob)
    begun = ready().announced(1).on(WARM)  # the download may go on, but training may not begin
    assert not begun.on(BlobFetched(A)).asked(StartJob)
    assert begun.on(FINE).asked(FetchBlob)


def test_a_round_that_ends_while_the_device_waits_is_forgotten_and_the_next_one_waits() -> None:
    device = training().on(COLD).announced(2, "b")
    assert device.agent.work is not None
    assert (device.agent.work.round, stage(device)) == (2, Stage.BLOCKED)
    assert device.on(FINE).asked(FetchBlob) == [FetchBlob(pointer("b"))]
    finished = training().on(COLD, Announced(announcement(1, "stopped", "b")))
    assert finished.agent.work is None


def test_an_export_that_is_stopped_costs_no_update_and_is_done_when_the_device_may() -> None:
    device = uploading().on(COLD)
    assert device.asked(StopJob)
    assert (stage(device), device.agent.outbox) == (Stage.BLOCKED, ("u1",))
    assert device.status == "uploading"
    device.on(FINE)
    assert not device.asked(FetchBlob)
    assert [(job.kind, job.round) for job in device.asked(StartJob)] == [("export", 1)]
    device.on(COLD)
    assert device.asked(StopJob)
    assert device.on(FINE, CandidateReady(1, "export")).asked(Evaluate) == [Evaluate(1, "export")]


def test_the_final_model_waits_too_and_is_not_forgotten() -> None:
    device = ready(until="finished").on(Announced(announcement(3, "finished", "b")), BlobFetched(B), COLD)
    assert device.asked(StopJob)
    assert not device.asked(Exit)
    assert device.on(FINE).asked(FetchBlob) == [FetchBlob(pointer("b"))]


def test_judging_goes_on_whatever_the_conditions() -> None:
    device = uploading().on(CandidateReady(1, "train"), COLD)
    assert (stage(device), device.asked(StopJob)) == (Stage.EVALUATING, [])


def test_a_failure_that_would_come_again_is_not_tried_again() -> None:
    device = training(attempts=3).on(JobFailed(1, "train", "the memory cap of 256 MB", final=True))
    assert [command.reason for command in device.asked(SkipRound)] == ["the memory cap of 256 MB"]
    assert device.agent.work is None


def test_a_model_that_cannot_be_used_is_refused_until_another_one_works() -> None:
    device = training(attempts=3).on(JobFailed(1, "train", "it holds NaN", final=True, is_unusable=True))
    about = ModelRefusal(instance=announcement().instance, model=A, reason="it holds NaN")
    assert status_of(device.agent).unusable == about.model_dump_json()
    device.announced(2, "b").on(BlobFetched(B), TrainingFinished(2, "u2", {}))
    assert status_of(device.agent).unusable == ""


def test_a_failure_of_its_own_is_no_refusal_of_the_model() -> None:
    device = training(attempts=1).on(JobFailed(1, "train", "no memory", final=True))
    assert status_of(device.agent).unusable == ""
