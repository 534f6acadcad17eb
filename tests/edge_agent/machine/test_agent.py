"""The state machine: what it asks for after each event, without any driver."""

from __future__ import annotations

import pytest

from edge_agent.machine.commands import (
    Collect,
    Evaluate,
    Exit,
    FetchBlob,
    ForgetUpdate,
    GlobalModelJudged,
    PublishStatus,
    Reset,
    SaveAdoptionReport,
    SendBegin,
    SendChunks,
    SkipRound,
    StartJob,
    StopJob,
    StopSending,
)
from edge_agent.machine.events import (
    Announced,
    BlobFailed,
    BlobFetched,
    CandidateEvaluated,
    CandidateReady,
    ChunkDelivered,
    ChunksSent,
    CollectingPaused,
    CollectingResumed,
    Connected,
    DataReady,
    Disconnected,
    JobFailed,
    SensorFailed,
    Tick,
    TrainingFinished,
)
from edge_agent.machine.state import Stage
from tests.edge_agent.factories import announcement, make_plan, pointer
from tests.edge_agent.state_machine import A, B, Device, answer, ready, training, uploading


def test_a_new_device_collects_and_says_how_many_examples_it_has() -> None:
    device = Device().on(Connected(), Announced(announcement(0, "waiting", None)))
    assert device.asked(Reset)
    assert device.asked(Collect)
    assert device.status == "collecting"
    device.on(DataReady(40))
    assert (device.status, device.asked(PublishStatus)[-1].status.examples) == ("ready", 40)


def test_a_round_goes_from_download_to_training_to_upload_to_judging() -> None:
    device = ready().announced(1)
    assert device.asked(FetchBlob) == [FetchBlob(pointer())]
    assert device.on(BlobFetched(A)).asked(StartJob)[0].round == 1
    device.on(TrainingFinished(1, "u1"))
    assert device.asked(SendBegin) == [SendBegin("u1")]
    assert device.status == "uploading"
    assert device.on(answer("send", next_chunk=3)).asked(SendChunks) == [SendChunks("u1", 3)]
    assert device.on(answer("accepted")).asked(ForgetUpdate) == [ForgetUpdate("u1", "accepted", "")]
    assert device.status == "idle"
    assert device.on(CandidateReady(1, "train")).asked(Evaluate) == [Evaluate(1, "train")]
    assert device.on(CandidateEvaluated(1, "train", "adopted", "better")).agent.work is None


def test_the_same_announcement_twice_does_not_train_twice() -> None:
    device = training()
    assert not device.on(Announced(announcement(1))).asked(FetchBlob)
    device.on(TrainingFinished(1, "u1"), answer("accepted"), CandidateReady(1, "train"))
    device.on(CandidateEvaluated(1, "train", "adopted", ""), Announced(announcement(1)))
    assert not device.asked(FetchBlob)
    assert not device.asked(StopJob)


def test_no_data_no_training() -> None:
    device = Device().on(Connected(), DataReady(0)).announced(1)
    assert not device.asked(FetchBlob)
    assert device.on(SensorFailed("no such file")).asked(Exit) == [Exit(1)]


def test_a_pause_in_collecting_is_said_until_it_is_over_and_holds_up_no_round() -> None:
    device = ready().on(CollectingPaused("collecting pauses: no room"))
    assert device.asked(PublishStatus)[-1].status.detail == "collecting pauses: no room"
    assert device.announced(1).asked(FetchBlob)
    assert device.on(CollectingResumed()).asked(PublishStatus)[-1].status.detail != "collecting pauses: no room"


def test_a_lost_answer_makes_the_device_begin_again_ever_more_slowly() -> None:
    device = uploading()
    assert not device.on(Tick(), at=9.9).asked(SendBegin)
    assert device.on(Tick(), at=10.0).asked(SendBegin) == [SendBegin("u1")]
    assert not device.on(Tick(), at=29.0).asked(SendBegin)  # the second silence may be 20 s
    assert device.on(Tick(), at=31.0).asked(SendBegin)
    assert not device.on(Tick(), at=70.0).asked(SendBegin)  # the third 40 s
    assert device.on(Tick(), at=72.0).asked(SendBegin)


def test_a_chunk_that_arrives_puts_off_the_time_out() -> None:
    device = uploading().on(answer("send"))
    device.on(ChunkDelivered("u1"), at=8.0)
    assert not device.on(Tick(), at=12.0).asked(SendBegin)
    assert device.on(ChunksSent("u1"), at=12.0).agent.upload.stage == "ended"
    assert device.on(Tick(), at=22.0).asked(SendBegin)


def test_a_server_that_says_the_same_anew_is_told_of_the_upload_at_once() -> None:
    device, said = uploading().on(answer("send")), announcement(1)
    assert not device.on(Announced(said)).asked(SendBegin)  # the retained message, delivered again
    anew = said.model_copy(update={"created": said.created + 1})
    assert device.on(Announced(anew)).asked(SendBegin) == [SendBegin("u1")]
    assert device.on(answer("accepted")).asked(ForgetUpdate)
    later = said.model_copy(update={"created": said.created + 2})
    assert not device.on(Announced(later)).asked(SendBegin)  # nothing is on its way
    next_state = uploading().on(Announced(announcement(1, "aggregating")))
    assert not next_state.asked(SendBegin)  # another state is news, not a repetition


def test_a_refused_update_is_given_up_for_good() -> None:
    device = uploading().on(answer("refused", reason="the round is over"))
    assert device.asked(ForgetUpdate) == [ForgetUpdate("u1", "refused", "the round is over")]
    assert not device.on(Tick(), at=100.0).asked(SendBegin)
    assert not device.on(answer("accepted")).asked(ForgetUpdate)


def test_an_update_that_is_put_off_is_kept_and_begun_again() -> None:
    device = uploading().on(answer("send"))
    put_off = device.on(answer("retry", reason="the server's disk is full"))
    assert put_off.asked(StopSending)
    assert not put_off.asked(ForgetUpdate)
    assert device.on(Tick(), at=1000.0).asked(SendBegin)


def test_a_reconnect_in_mid_upload_stops_the_chunks_and_begins_again() -> None:
    device = uploading().on(answer("send"))
    assert device.on(Disconnected("gone")).asked(StopSending)
    assert not device.on(Tick(), at=100.0).asked(SendBegin)
    device.on(Connected())
    assert device.asked(SendBegin) == [SendBegin("u1")]
    assert device.status == "uploading"
    assert device.on(answer("send", next_chunk=7)).asked(SendChunks) == [SendChunks("u1", 7)]


def test_a_new_round_while_uploading_trains_and_still_delivers_the_old_update() -> None:
    device = uploading().on(answer("send")).announced(2, "b")
    assert device.asked(StopJob)  # the export of round 1, which round 2 does not wait for
    assert device.asked(FetchBlob) == [FetchBlob(pointer("b"))]
    assert device.agent.outbox == ("u1",)
    device.on(BlobFetched(B), TrainingFinished(2, "u2"))
    assert device.agent.outbox == ("u1", "u2")
    assert not device.asked(SendBegin)  # one after the other
    assert device.on(answer("refused", reason="late")).asked(SendBegin) == [SendBegin("u2")]


@pytest.mark.parametrize(("late", "stopped"), [("drop", True), ("next", False)])
def test_training_for_a_round_that_is_over_goes_on_only_where_late_updates_count(late: str, stopped: bool) -> None:
    plan = make_plan(late=late)
    device = ready().announced(1, plan=plan).on(BlobFetched(A))
    device.announced(2, "b", plan=plan)
    assert bool(device.asked(StopJob)) is stopped
    assert bool(device.asked(FetchBlob)) is stopped


def test_a_failed_training_is_tried_again_and_then_left_out() -> None:
    device = training().on(JobFailed(1, "train", "killed by signal 9"))
    assert not device.asked(SkipRound)
    assert device.agent.work is not None
    assert device.agent.work.stage is Stage.BACKOFF
    assert not device.on(Tick(), at=0.4).asked(FetchBlob)
    assert device.on(Tick(), at=1.6).asked(FetchBlob)  # retry_s 1, jitter 0.5 to 1.5
    device.on(BlobFetched(A), JobFailed(1, "train", "killed by signal 9"))
    assert [(command.round, command.base) for command in device.asked(SkipRound)] == [(1, A)]
    assert "2 attempts failed" in device.asked(SkipRound)[0].reason
    assert not device.on(Announced(announcement(1)), Tick(), at=100.0).asked(FetchBlob)
    assert device.announced(2, "b").asked(FetchBlob)


def test_a_download_is_tried_for_as_long_as_the_round_lasts() -> None:
    device = ready().announced(1)
    for attempt in range(5):
        device.on(BlobFailed(A, "no route"))
        assert device.on(Tick(), at=device.now + 100.0).asked(FetchBlob), attempt
    assert not device.on(BlobFailed(B, "of another round")).asked(StopJob)


def test_a_failed_export_costs_the_model_but_not_the_update() -> None:
    device = uploading().on(JobFailed(1, "train", "parity"))
    assert device.agent.outbox == ("u1",)
    assert device.agent.work is None
    assert not device.asked(SkipRound)


def test_the_final_model_is_fetched_exported_judged_and_then_the_device_leaves() -> None:
    device = ready(until="finished").on(Announced(announcement(3, "finished", "b")))
    assert device.asked(FetchBlob) == [FetchBlob(pointer("b"))]
    assert not device.asked(Exit)
    assert device.on(BlobFetched(B)).asked(StartJob)[0].kind == "adopt"
    assert device.on(CandidateReady(3, "adopt")).asked(Evaluate) == [Evaluate(3, "adopt")]
    device.on(CandidateEvaluated(3, "adopt", "refused", "worse"))
    assert device.asked(GlobalModelJudged) == [GlobalModelJudged(B)]
    assert device.status == "finished"
    assert device.asked(Exit) == [Exit(0)]


def test_a_final_model_that_cannot_be_exported_does_not_hold_the_device_back() -> None:
    device = ready(until="finished", attempts=1).on(Announced(announcement(3, "finished", "b")), BlobFetched(B))
    device.on(JobFailed(3, "adopt", "parity"))
    assert device.asked(GlobalModelJudged)
    assert device.asked(Exit) == [Exit(0)]


def test_without_rollouts_the_server_hears_what_became_of_each_candidate() -> None:
    device = uploading().on(answer("accepted"), CandidateReady(1, "train"))
    device.on(CandidateEvaluated(1, "train", "failed", "it does not work", 0.1, 0.1))
    told = device.asked(PublishStatus)[-1].status.adoption
    assert told is not None
    assert (told.round, told.source, told.answer, told.score) == (1, "personalized", "failed", 0.1)
    assert device.asked(SaveAdoptionReport) == [SaveAdoptionReport(told)]
    device.announced(2, "b").on(BlobFetched(B), TrainingFinished(2, "u2"), JobFailed(2, "train", "no parity"))
    told = device.agent.adoption
    assert told is not None
    assert (told.round, told.answer, told.reason) == (2, "failed", "no parity")
    device.on(Announced(announcement(3, "finished", "a")), BlobFetched(A), CandidateReady(3, "adopt"))
    device.on(CandidateEvaluated(3, "adopt", "none", "the method local has no global model"))
    assert device.agent.adoption == told  # of a method without a global model there is nothing to say


def test_a_finished_federation_stops_training_that_is_under_way() -> None:
    device = training().on(Announced(announcement(1, "finished", "b")))
    assert device.asked(StopJob)
    assert device.asked(FetchBlob) == [FetchBlob(pointer("b"))]


def test_metrics_that_are_no_numbers_are_not_reported() -> None:
    device = training().on(TrainingFinished(1, "u1", {"train_loss": 0.5, "macro_f1_after": float("nan")}))
    assert device.asked(PublishStatus)[-1].status.metrics == {"train_loss": 0.5}


def test_an_event_about_work_that_was_dropped_changes_nothing() -> None:
    device = ready()
    before = device.agent
    device.on(BlobFetched(A), CandidateReady(9, "train"), JobFailed(9, "train", "x"), answer("send", "u9"))
    assert device.agent == before
    assert device.last == ()
