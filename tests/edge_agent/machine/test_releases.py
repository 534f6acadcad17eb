"""Which released model a device takes up, when it leaves one, and what it says about them; without any driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_agent.machine.commands import (
    BeginEpoch,
    Evaluate,
    FetchBlob,
    PublishStatus,
    Rollback,
    SaveAdoptionReport,
    SaveReleaseReport,
    StartJob,
    StopJob,
)
from edge_agent.machine.events import (
    Announced,
    BlobFetched,
    CandidateEvaluated,
    CandidateReady,
    Connected,
    DataReady,
    JobFailed,
    ModelInUse,
    Offered,
    TrainingFinished,
)
from edge_agent.machine.releases import offered_to
from edge_agent.machine.state import Agent
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import begin_epoch, load_agent
from edge_agent.supervisor.status import describe_release
from federation.plan import RolloutSettings
from federation.protocol.messages import AdoptionReport, Offer, Release, ReleaseOrder, ReleaseReport, VersionScore
from federation.rounds.rollout import MILLION, is_within
from tests.edge_agent.factories import INSTANCE, announcement, make_plan, pointer
from tests.edge_agent.state_machine import A, B, Device, answer

SCORE = VersionScore(value=800_000, trivial=60_000, devices=9, working=9, measured="version")
PLAN = make_plan().model_copy(update={"rollout": RolloutSettings(mode="manual")})


def release(number: int, model: str = "b") -> Release:
    return Release(rollout=number, version=number, round=number, model=pointer(model))


def order(serial: int = 1, **fields: Any) -> ReleaseOrder:
    return ReleaseOrder(serial=serial, **fields)


def said(order: ReleaseOrder | None, number: int = 0, state: str = "waiting") -> Announced:
    return Announced(announcement(number, state, "a", plan=PLAN, release=order))


def waiting(**agent: Any) -> Device:
    """A connected device with data, in a federation whose devices use what is released."""
    return Device(Agent(**agent)).on(Connected(), said(None), DataReady(40))


def adopting(number: int = 1) -> Device:
    device = waiting().on(said(order(released=release(number))), BlobFetched(B))
    return device.on(CandidateReady(number, "adopt"))


def report(device: Device) -> tuple[int, str, float | None, str] | None:
    found = device.agent.report
    assert found is None or found.instance == INSTANCE
    return None if found is None else (found.rollout, found.answer, found.score, found.reason)


def test_only_the_devices_of_its_wave_get_the_candidate() -> None:
    both = order(released=release(1, "a"), candidate=release(2), share_millionths=300_000)
    got = {name: offered_to(name, both) for name in map(str, range(100))}
    assert {name for name, found in got.items() if found == both.candidate} == {
        name for name in got if is_within(name, 2, 300_000)
    }
    assert all(found in (both.released, both.candidate) for found in got.values())
    assert both.released in got.values()
    assert offered_to("any", order(candidate=release(1), share_millionths=0)) is None


def test_an_offer_gives_the_candidate_to_a_device_outside_the_share_whichever_comes_first() -> None:
    both = order(2, released=release(1, "a"), candidate=release(2))
    mine = Offer(instance=INSTANCE, rollout=2)
    first = waiting().on(Offered(mine))
    assert not first.asked(FetchBlob)
    assert first.on(said(both)).asked(FetchBlob) == [FetchBlob(pointer("b"))]
    later = waiting().on(said(both))
    assert later.asked(FetchBlob) == [FetchBlob(pointer("a"))]
    assert later.on(Offered(mine)).asked(FetchBlob) == [FetchBlob(pointer("b"))]
    for other in (
        mine.model_copy(update={"epoch": 9}),
        Offer(instance="f" * 32, rollout=2),
        Offer(instance=INSTANCE, rollout=1),
    ):
        assert not waiting().on(said(order(2, candidate=release(2))), Offered(other)).asked(FetchBlob)


def test_an_offer_survives_a_restart_and_a_new_epoch_ends_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    mine = Offer(instance=INSTANCE, rollout=2)
    store.put(
        identity=f"{INSTANCE}/har_cnn",
        offer=mine.model_dump_json(),
        order=order(candidate=release(2)).model_dump_json(),
    )
    assert load_agent(store).offer == mine
    assert "Release 2 (version 2) is for it" in describe_release(store, "d1")[-1]
    begin_epoch(store, BeginEpoch(2, 0, None))
    assert load_agent(store).offer is None


def test_a_released_model_is_fetched_by_the_order_exported_judged_and_reported() -> None:
    device = waiting()
    assert device.on(said(order(released=release(1)))).asked(FetchBlob) == [FetchBlob(pointer("b"))]
    assert [job.kind for job in device.on(BlobFetched(B)).asked(StartJob)] == ["adopt"]
    assert device.on(CandidateReady(1, "adopt")).asked(Evaluate) == [Evaluate(1, "adopt", 1)]
    device.on(CandidateEvaluated(1, "adopt", "adopted", "better", 0.9))
    assert report(device) == (1, "adopted", 0.9, "")
    assert device.asked(SaveReleaseReport)
    assert device.asked(PublishStatus)[-1].status.release == device.agent.report
    assert not device.on(ModelInUse(1, 0.9), said(order(released=release(1)))).asked(FetchBlob)  # once is enough


def test_a_refused_and_a_failed_one_are_reported_with_their_reasons_and_not_tried_again() -> None:
    refused = adopting().on(CandidateEvaluated(1, "adopt", "refused", "worse", 0.3))
    assert report(refused) == (1, "refused", 0.3, "worse")
    broken = adopting().on(CandidateEvaluated(1, "adopt", "failed", "NaN", None))
    assert report(broken) == (1, "failed", None, "NaN")
    hopeless = waiting().on(said(order(released=release(1))), BlobFetched(B))
    hopeless.on(JobFailed(1, "adopt", "no memory", final=True))
    assert report(hopeless) == (1, "failed", None, "no memory")
    for device in (refused, broken, hopeless):
        assert not device.on(said(order(2, released=release(1)))).asked(FetchBlob)
        assert device.on(said(order(3, released=release(2)))).asked(FetchBlob)


def test_a_model_that_does_not_work_is_failed_with_its_score_and_one_that_is_worse_is_refused() -> None:
    broken = adopting().on(CandidateEvaluated(1, "adopt", "failed", "it answers 'sit' whatever it sees", 0.05, 0.05))
    assert report(broken) == (1, "failed", 0.05, "it answers 'sit' whatever it sees")
    said = broken.asked(PublishStatus)[-1].status.adoption
    assert said == AdoptionReport(
        instance=INSTANCE,
        round=1,
        source="global",
        answer="failed",
        score=0.05,
        trivial=0.05,
        reason="it answers 'sit' whatever it sees",
    )
    assert broken.asked(SaveAdoptionReport) == [SaveAdoptionReport(said)]


def test_a_release_that_nobody_can_check_is_no_failure_and_is_taken_up_again_with_a_score() -> None:
    device = adopting().on(CandidateEvaluated(1, "adopt", "undecided", "nobody knows"))
    assert report(device) is None
    assert not device.on(said(order(2, released=release(1)))).asked(FetchBlob)
    known = release(1).model_copy(update={"model": pointer("b").model_copy(update={"score": SCORE})})
    assert device.on(said(order(3, released=known))).asked(FetchBlob) == [FetchBlob(known.model)]
    device.on(BlobFetched(B), CandidateReady(1, "adopt"))
    assert device.asked(Evaluate) == [Evaluate(1, "adopt", 1, SCORE)]


def test_what_was_withdrawn_is_left_also_if_it_was_being_judged() -> None:
    device = adopting().on(CandidateEvaluated(1, "adopt", "adopted", "", 0.9), said(order(2, withdrawn=(1,))))
    assert device.asked(Rollback) == [Rollback(1)]
    assert report(device.on(ModelInUse(0))) == (1, "rolled_back", 0.9, "withdrawn by the server")
    assert not device.asked(Rollback)

    late = adopting().on(said(order(2, withdrawn=(1,))))
    assert late.on(CandidateEvaluated(1, "adopt", "adopted", "", 0.9)).asked(Rollback) == [Rollback(1)]

    unused = waiting().on(said(order(released=release(1))), BlobFetched(B), said(order(2, withdrawn=(1,))))
    assert unused.asked(StopJob)
    assert unused.agent.work is None


def test_it_goes_back_to_the_older_release_by_itself_and_takes_it_up_if_it_had_another() -> None:
    fourth = ReleaseReport(instance=INSTANCE, rollout=4, answer="adopted")
    halted = order(9, released=release(3, "a"), withdrawn=(4,))
    device = waiting(identity=f"{INSTANCE}/har_cnn", report=fourth).on(ModelInUse(4), said(halted))
    assert (device.asked(Rollback), device.asked(FetchBlob)) == ([Rollback(4)], [])
    assert not device.on(ModelInUse(3)).asked(FetchBlob)
    other = waiting(identity=f"{INSTANCE}/har_cnn", report=fourth).on(ModelInUse(4), said(halted), ModelInUse(2))
    assert other.asked(FetchBlob) == [FetchBlob(pointer("a"))]


def test_a_release_that_was_kept_back_is_taken_up_again_when_the_better_one_is_withdrawn() -> None:
    both = order(2, released=release(4))
    device = waiting(identity=f"{INSTANCE}/cnn").on(ModelInUse(3, 0.9), said(both), BlobFetched(B))
    device.on(CandidateReady(4, "adopt"), CandidateEvaluated(4, "adopt", "kept", "it scores lower", 0.8))
    assert report(device) == (4, "kept", 0.8, "it scores lower")
    assert not device.on(said(both)).asked(FetchBlob)
    device.on(said(order(3, released=release(4), withdrawn=(3,))))
    assert (device.asked(Rollback), device.asked(FetchBlob)) == ([Rollback(3)], [])
    assert device.on(ModelInUse(0)).asked(FetchBlob) == [FetchBlob(pointer("b"))]


def test_a_rollback_by_hand_is_reported_and_not_undone() -> None:
    device = adopting().on(CandidateEvaluated(1, "adopt", "adopted", "", 0.9), ModelInUse(0))
    assert report(device) == (1, "rolled_back", 0.9, "rolled back on the device")
    assert not device.on(said(order(2, released=release(1)))).asked(FetchBlob)
    assert report(device.on(ModelInUse(1, 0.9))) == (1, "adopted", 0.9, "")  # twice: as it was


def test_training_comes_first_and_leaves_no_model_of_its_own() -> None:
    device = waiting().on(said(order(released=release(1))), BlobFetched(B))
    device.announced(1, plan=PLAN, release=order(released=release(1)))
    assert device.asked(StopJob)
    assert device.asked(FetchBlob) == [FetchBlob(pointer("a"))]
    device.on(BlobFetched(A), TrainingFinished(1, "u1"), answer("accepted"), CandidateReady(1, "train"))
    assert not device.asked(Evaluate)
    assert device.asked(FetchBlob) == [FetchBlob(pointer("b"))]  # and then the release


def test_a_paused_round_is_trained_on_although_a_release_waits() -> None:
    device = waiting().announced(1, plan=PLAN).on(BlobFetched(A))
    device.on(said(order(released=release(1)), 1, "paused"))
    assert not device.asked(StopJob)
    assert not device.asked(FetchBlob)


def test_the_federations_last_model_is_not_adopted_where_others_are_released() -> None:
    device = waiting().on(said(None, 3, "finished"))
    assert not device.asked(FetchBlob)
    assert device.agent.finished
    assert not device.on(said(order(released=release(1)), 3, "finished")).agent.finished


def test_a_report_that_a_kill_has_cost_is_made_again() -> None:
    device = waiting(identity=f"{INSTANCE}/har_cnn").on(ModelInUse(3, 0.5))
    assert report(device) == (3, "adopted", 0.5, "")


def test_an_order_is_small_whatever_the_fleet() -> None:
    full = order(
        2**53 - 1, released=release(1), candidate=release(2), share_millionths=MILLION, withdrawn=tuple(range(32))
    )
    assert len(full.model_dump_json()) < 2000
