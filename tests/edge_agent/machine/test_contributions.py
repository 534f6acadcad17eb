"""A continuous federation in the state machine: when sums are sent, when not, and how they are taken out again."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.machine.commands import (
    AnswerSum,
    Evaluate,
    FetchBlob,
    ForgetContribution,
    ForgetUpdate,
    PrepareWithdrawal,
    PublishStatus,
    SendBegin,
    SkipRound,
    StartJob,
    StopJob,
)
from edge_agent.machine.contributions import PAUSE_S
from edge_agent.machine.events import (
    Announced,
    BlobFailed,
    BlobFetched,
    CandidateEvaluated,
    CandidateReady,
    Connected,
    DataReady,
    Disconnected,
    Invited,
    JobFailed,
    ParticipationRead,
    Tick,
    TrainingConditions,
    TrainingFinished,
    WithdrawalReady,
)
from edge_agent.machine.state import Agent, Contribution, Stage
from federation.plan import SecureSettings
from federation.protocol.messages import DeviceStatus, Invitation, SumOrder
from tests.edge_agent.factories import INSTANCE, announcement, make_plan, pointer
from tests.edge_agent.state_machine import A, B, Device, answer, ready

LATER_S = 2 * PAUSE_S
"""Longer than any pause: its jitter is a half at the most."""


def version(number: int = 1, model: str = "a", **fields: Any) -> Announced:
    """What the server says while version `number` is the next one."""
    return Announced(announcement(number, model=model, continuous=True, **fields))


def windows(first: int, end: int) -> DataReady:
    return DataReady(end - first, keys=frozenset(range(first, end)))


def device(agent: Agent | None = None, **policy: Any) -> Device:
    return Device(agent, **policy).on(Connected(), version())


def sent(**policy: Any) -> Device:
    """A device whose sums over windows 0 to 39 are accepted, and whose model is in use."""
    one = device(**policy).on(windows(0, 40), BlobFetched(A), TrainingFinished(1, "s1", {}, frozenset(range(40))))
    one.on(answer("accepted", "s1"), CandidateReady(1, "train"))
    return one.on(CandidateEvaluated(1, "train", "adopted", "", with_global=True))


def test_the_first_labelled_windows_are_sent_without_an_invitation() -> None:
    one = device().on(windows(0, 0))
    assert not one.asked(FetchBlob)
    assert one.on(windows(0, 1)).asked(FetchBlob)
    (job,) = one.on(BlobFetched(A)).asked(StartJob)
    assert (job.kind, job.round, job.continuous) == ("train", 1, True)
    assert one.on(TrainingFinished(1, "s1", {}, frozenset(range(1)))).asked(SendBegin) == [SendBegin("s1")]


def test_they_are_sent_again_when_enough_came_or_went() -> None:
    one = sent()
    assert not one.on(windows(0, 59)).asked(FetchBlob)  # 19 came
    assert not one.on(windows(19, 40)).asked(FetchBlob)  # 19 went, counted from what was sent
    assert not one.on(windows(10, 49)).asked(FetchBlob)  # 10 went and 9 came
    assert one.on(windows(10, 50)).asked(FetchBlob)


def test_a_newer_version_alone_makes_nobody_send() -> None:
    one = sent()
    one.on(version(2, "b"), Tick(), at=1.0)
    assert not any(job.kind == "train" for job in one.asked(StartJob))
    one.on(BlobFetched(B))
    assert [job.kind for job in one.asked(StartJob)] == ["adopt"]


def test_one_update_at_a_time_and_what_changed_meanwhile_follows() -> None:
    one = device().on(windows(0, 40), BlobFetched(A), TrainingFinished(1, "s1", {}, frozenset(range(40))))
    one.on(CandidateReady(1, "train"), CandidateEvaluated(1, "train", "adopted", ""), windows(0, 90))
    assert one.agent.work is None  # the first is not answered
    assert one.on(answer("accepted", "s1")).asked(FetchBlob)


def test_a_version_that_comes_while_it_works_stops_nothing() -> None:
    one = device().on(windows(0, 40))
    one.on(version(2, "b"))
    assert one.agent.work
    assert one.agent.work.stage is Stage.FETCHING
    one.on(BlobFailed(A, "it is gone"), at=0.0).on(Tick(), at=100.0)
    assert one.asked(FetchBlob)[-1].model.sha256 == B  # the newest, as the old one may be gone
    one.on(BlobFetched(B), version(3, "a"))
    assert not one.asked(StopJob)
    one.on(TrainingFinished(2, "s1", {}, frozenset(range(40))), version(4, "b"), windows(0, 90))
    assert one.agent.work
    assert one.agent.work.stage is Stage.EXPORTING
    assert not one.asked(StopJob)
    assert one.on(CandidateReady(2, "train")).asked(Evaluate)


def test_a_restart_sends_nothing_twice_and_another_epoch_or_instance_everything() -> None:
    memory = Agent(identity=sent().agent.identity, contribution=Contribution("sums", "s1", frozenset(range(40))))
    one = device(memory).on(windows(0, 40))
    assert not one.asked(FetchBlob)
    assert one.on(version(epoch=2)).asked(FetchBlob)
    one = device(memory).on(windows(0, 40))
    one.on(version(instance="1" * 32), windows(0, 40))
    assert one.asked(FetchBlob)


def test_conditions_hold_it_back_as_a_round() -> None:
    one = device().on(TrainingConditions(("it is hot",), ("it is hot",)), windows(0, 40))
    assert not one.asked(FetchBlob)
    assert one.agent.work
    assert one.agent.work.stage is Stage.BLOCKED
    assert one.on(TrainingConditions()).asked(FetchBlob)


def test_sums_that_cannot_be_made_are_tried_again_after_a_pause() -> None:
    one = device(attempts=1).on(windows(0, 40), BlobFetched(A), JobFailed(1, "train", "the broadcast is broken", True))
    assert not one.asked(SkipRound)
    assert one.agent.work is None
    assert "broken" in one.asked(PublishStatus)[-1].status.detail
    one.on(windows(0, 90), version(2, "b"), BlobFetched(B), at=1.0)
    assert [job.kind for job in one.asked(StartJob)] == ["adopt"]  # of another version the model may do
    one.on(CandidateReady(1, "adopt"), CandidateEvaluated(1, "adopt", "adopted", ""))
    assert one.agent.work is None
    assert one.on(Tick(), at=LATER_S).asked(FetchBlob)
    assert one.agent.work
    assert one.agent.work.kind == "train"


def test_a_person_withdraws_and_nothing_but_that_leaves_any_more() -> None:
    one = sent().on(ParticipationRead(False))
    (asked,) = one.asked(PrepareWithdrawal)
    assert (asked.round, asked.base) == (1, A)
    one.on(WithdrawalReady("s2"))
    assert one.asked(SendBegin) == [SendBegin("s2")]
    one.on(answer("accepted", "s2"), windows(0, 90), version(2, "b"), Tick(), at=LATER_S)
    assert one.agent.outbox == ()
    assert not any(job.kind == "train" for job in one.asked(StartJob))
    status = one.asked(PublishStatus)[-1].status
    assert (status.examples, status.metrics, status.adoption) == (0, {}, None)
    assert "withdrawn" in status.detail


def test_what_is_under_way_is_given_up_for_a_withdrawal() -> None:
    one = device().on(windows(0, 40), BlobFetched(A), ParticipationRead(False))
    assert one.asked(StopJob)
    assert one.asked(PrepareWithdrawal)  # nothing was sent as far as it knows, but its folder may have been lost
    one = device().on(windows(0, 40), BlobFetched(A), TrainingFinished(1, "s1", {}, frozenset(range(40))))
    one.on(Disconnected("gone"), ParticipationRead(False), WithdrawalReady("s2"), Connected())
    assert one.asked(SendBegin) == [SendBegin("s2")]
    assert one.agent.outbox == ("s2",)


def test_a_withdrawal_is_repeated_until_it_is_answered_and_after_a_refusal_later() -> None:
    one = sent().on(ParticipationRead(False), WithdrawalReady("s2"), at=0.0)
    assert one.on(Tick(), at=11.0).asked(SendBegin) == [SendBegin("s2")]
    one.on(answer("refused", "s2", reason="the disk is full"))
    assert one.asked(ForgetUpdate)
    assert one.asked(ForgetContribution)
    assert not one.asked(PrepareWithdrawal)
    assert one.on(Tick(), at=LATER_S).asked(PrepareWithdrawal)


def test_a_message_that_could_not_be_written_is_written_later() -> None:
    one = sent().on(ParticipationRead(False), at=0.0)
    assert not one.on(Tick(), at=1.0).asked(PrepareWithdrawal)
    assert one.on(Tick(), at=30.0).asked(PrepareWithdrawal)


def test_a_restored_server_is_asked_again() -> None:
    one = sent().on(ParticipationRead(False), WithdrawalReady("s2"), answer("accepted", "s2"))
    assert one.on(version(epoch=2)).asked(PrepareWithdrawal)


def test_a_restored_server_is_asked_again_by_a_device_whose_windows_are_gone() -> None:
    one = sent().on(windows(0, 0), WithdrawalReady("s2"), answer("accepted", "s2"))
    assert not one.on(Tick(), at=LATER_S).asked(PrepareWithdrawal)
    assert one.on(version(epoch=2)).asked(PrepareWithdrawal)


def test_it_takes_part_again_when_it_is_told_to() -> None:
    one = sent().on(ParticipationRead(False), WithdrawalReady("s2"), answer("accepted", "s2"))
    assert one.on(ParticipationRead(True)).asked(FetchBlob)


def test_windows_that_are_all_deleted_take_the_sums_out() -> None:
    one = sent().on(windows(0, 0))
    assert one.asked(PrepareWithdrawal)
    one.on(WithdrawalReady("s2"), answer("accepted", "s2"))
    assert one.on(windows(0, 3)).asked(FetchBlob)


def test_without_windows_nothing_was_sent_and_nothing_is_taken_out() -> None:
    one = device().on(windows(0, 0), Tick())
    assert not one.asked(PrepareWithdrawal)


def test_a_device_without_labels_uses_the_first_version_at_once_and_newer_ones_now_and_then() -> None:
    one = device(refresh_s=100.0).on(DataReady(0, measurable=True))
    assert not one.asked(FetchBlob)  # nobody has sent anything yet
    one.on(version(2, "b"), BlobFetched(B), CandidateReady(1, "adopt"), at=0.0)
    one.on(CandidateEvaluated(1, "adopt", "adopted", ""))
    for number, model in ((3, "a"), (4, "b"), (5, "a")):  # each is half as much again as the one before
        assert one.on(version(number, model), at=1.0).asked(FetchBlob)
        one.on(BlobFetched({"a": A, "b": B}[model]), CandidateReady(number - 1, "adopt"))
        one.on(CandidateEvaluated(number - 1, "adopt", "adopted", ""))
    assert not one.on(version(6, "b"), at=2.0).asked(FetchBlob)
    assert one.on(Tick(), at=102.0).asked(FetchBlob)


def unlabelled(end: int) -> DataReady:
    return DataReady(0, measurable=end >= 20, unlabelled=frozenset(range(end)))


def test_a_device_without_labels_makes_its_heads_again_when_enough_new_windows_came() -> None:
    one = device(refresh_s=100.0).on(unlabelled(20), version(2, "b"), BlobFetched(B), CandidateReady(1, "adopt"))
    one.on(CandidateEvaluated(1, "adopt", "adopted", ""))
    assert not one.on(unlabelled(39)).asked(FetchBlob)  # 19 new ones
    assert one.on(unlabelled(40)).asked(FetchBlob) == [FetchBlob(pointer("b"), None)]
    one.on(unlabelled(44))  # while the blob is fetched: the process reads them too
    (job,) = one.on(BlobFetched(B)).asked(StartJob)
    assert (job.kind, job.round) == ("adopt", 1)
    one.on(CandidateReady(1, "adopt"), CandidateEvaluated(1, "adopt", "adopted", ""))
    assert not one.on(unlabelled(65)).asked(FetchBlob)  # 21 new ones, but not half as many again
    assert one.on(Tick(), at=101.0).asked(FetchBlob)
    one.on(BlobFetched(B), CandidateReady(1, "adopt"), CandidateEvaluated(1, "adopt", "adopted", ""))
    assert not one.on(Tick(), at=500.0).asked(FetchBlob)  # no new ones
    assert not one.on(windows(0, 1)).asked(StopJob)  # the first label: from then on it sends sums
    assert one.agent.work is not None
    assert one.agent.work.kind == "train"


@pytest.mark.ci
def test_new_windows_alone_cost_a_day_few_processes() -> None:
    one = device().on(unlabelled(20), version(2, "b"), BlobFetched(B), CandidateReady(1, "adopt"))
    one.on(CandidateEvaluated(1, "adopt", "adopted", ""))
    made, hour_s = 0, 3600.0
    for number in range(20, 24 * 1406, 20):  # 1,406 windows an hour
        one.on(unlabelled(number), Tick(), at=number / 1406 * hour_s)
        if one.agent.work:
            one.on(BlobFetched(B), CandidateReady(1, "adopt"), CandidateEvaluated(1, "adopt", "adopted", ""))
            made += 1
    assert 90 <= made <= 96 + 8  # one in 15 minutes, or in the next of our steps, and those of the first minutes


def test_rounds_are_as_they_were() -> None:
    one = ready().on(DataReady(40, keys=frozenset(range(40)))).announced(1)
    (job,) = one.on(BlobFetched(A)).asked(StartJob)
    assert not job.continuous
    one.on(TrainingFinished(1, "u1"), answer("accepted"), CandidateReady(1, "train"))
    one.on(CandidateEvaluated(1, "train", "adopted", ""), DataReady(90, keys=frozenset(range(90))))
    assert not one.asked(FetchBlob)


MASKED = make_plan().model_copy(update={"secure": SecureSettings(mode="masked")})
KEYS = frozenset(range(40))


def secure_round(number: int, kind: Any = "request") -> Invited:
    """What the server says to the device in a round of masked sums."""
    order = SumOrder(kind=kind, body="{}")
    return Invited(Invitation(instance=INSTANCE, round=number, model=pointer("a"), sum=order))


def masked(agent: Agent | None = None) -> Device:
    return Device(agent).on(Connected(), version(plan=MASKED), windows(0, 40))


def reported(one: Device) -> DeviceStatus:
    assert one.agent.reported is not None
    return one.agent.reported


def test_masked_sums_wait_for_an_invitation_and_are_added_whole_to_each_round() -> None:
    one = masked()
    assert reported(one).sums == 0
    assert not one.asked(FetchBlob)  # nobody has invited it
    one.on(secure_round(1))
    assert one.on(BlobFetched(A)).asked(StartJob)[0].sum_request == "{}"
    one.on(TrainingFinished(1, "m1-keys", {}, KEYS, 7), answer("accepted", "m1-keys"), CandidateReady(1, "train"))
    one.on(CandidateEvaluated(1, "train", "adopted", "", with_global=True), secure_round(1))
    assert not one.asked(FetchBlob)  # once a round
    assert reported(one).sums == 7
    assert one.on(secure_round(1, "members")).asked(AnswerSum)
    one.on(windows(0, 90))
    assert reported(one).sums == 0  # it would add others
    one.on(windows(0, 40), secure_round(2), version(2, plan=MASKED))
    assert reported(one).sums == 7
    assert one.asked(FetchBlob)  # the same sums go into the next round too
    one.on(BlobFetched(A), version(3, plan=MASKED))  # the round was over before they were ready
    assert one.asked(StopJob)


def test_a_device_that_leaves_adds_nothing_to_masked_sums() -> None:
    one = masked(Agent(identity=masked().agent.identity, contribution=Contribution("sums", "", KEYS, 7)))
    assert (reported(one).state, reported(one).sums) == ("idle", 7)
    one.on(ParticipationRead(False))
    assert (reported(one).state, reported(one).sums) == ("collecting", 0)
    one.on(secure_round(1))
    assert not one.asked(FetchBlob)
    assert not one.asked(PrepareWithdrawal)
    assert not one.on(secure_round(1, "members")).asked(AnswerSum)
    one.on(ParticipationRead(True), secure_round(2), version(2, plan=MASKED))
    assert one.asked(FetchBlob)
    one.on(version(2, plan=MASKED, epoch=2))
    assert one.agent.contribution == Contribution("sums", "", KEYS, 7)  # the same sums, also of a restored server
