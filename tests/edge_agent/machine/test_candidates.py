"""A device's own model whose export or judgement lost to something else: it is done later, also after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge_agent.machine.commands import (
    Evaluate,
    Exit,
    FetchBlob,
    ForgetCandidate,
    GlobalModelJudged,
    SaveAdoptionReport,
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
    TrainingFinished,
)
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import forget_candidate, load_agent, save_round
from edge_agent.training.job import CHECKPOINT, candidate_path
from federation.plan import RolloutSettings
from tests.edge_agent.factories import announcement, make_config, make_plan
from tests.edge_agent.serving.test_acceptance import score
from tests.edge_agent.state_machine import B, Device, answer, ready, uploading
from tests.edge_agent.storage.test_state_store import make_job

C = "c" * 64


def jobs(device: Device) -> list[tuple[str, int]]:
    return [(job.kind, job.round) for job in device.asked(StartJob)]


def second_round_lost() -> Device:
    """Round 2 began while round 1's model was exported, and nothing came of it."""
    device = uploading().announced(2, "b")
    assert "its model is exported later" in device.asked(StopJob)[0].reason
    device.agent = replace(device.agent, judged_global=B)
    return device.on(BlobFetched(B), JobFailed(2, "train", "a broken broadcast", final=True))


def test_a_candidate_that_lost_to_the_next_round_is_exported_and_judged_after_it() -> None:
    device = second_round_lost()
    assert jobs(device) == [("train", 2), ("export", 1)]
    assert not device.asked(FetchBlob)  # its checkpoint is here
    device.on(CandidateReady(1, "export"))
    assert device.asked(Evaluate) == [Evaluate(1, "export")]
    device.on(CandidateEvaluated(1, "export", "adopted", "better", 0.9))
    assert device.asked(ForgetCandidate) == [ForgetCandidate(1)]
    (told,) = device.asked(SaveAdoptionReport)
    assert (told.report.round, told.report.source, told.report.answer) == (1, "personalized", "adopted")
    assert device.agent.work is None
    assert not jobs(device.on(Announced(announcement(2, "waiting", "b"))))


def test_a_round_interrupts_the_later_export_too_and_its_own_model_takes_its_place() -> None:
    device = second_round_lost().announced(3, "c")
    assert device.asked(StopJob)
    device.on(BlobFetched(C), TrainingFinished(3, "u3"))
    assert device.asked(ForgetCandidate) == [ForgetCandidate(1)]
    assert [one.round for one in device.agent.candidates] == [3]


def test_an_export_that_fails_later_is_said_and_not_repeated() -> None:
    device = second_round_lost().on(JobFailed(1, "export", "no parity"))
    assert device.asked(ForgetCandidate) == [ForgetCandidate(1)]
    assert [command.report.answer for command in device.asked(SaveAdoptionReport)] == ["failed"]
    assert not jobs(device)


def test_the_last_global_model_comes_first_and_the_device_stays_until_its_own_was_judged() -> None:
    agent = replace(second_round_lost().agent, work=None)  # as a restart leaves it
    device = Device(agent, until="finished").on(Announced(announcement(2, "finished", "c")))
    assert device.asked(FetchBlob)
    device.on(BlobFetched(C), CandidateReady(2, "adopt"))
    device.on(CandidateEvaluated(2, "adopt", "kept", "not better"))
    assert not device.asked(Exit)
    assert jobs(device) == [("export", 1)]
    device.on(CandidateReady(1, "export"), CandidateEvaluated(1, "export", "kept", "not better"))
    assert device.asked(Exit) == [Exit(0)]


def test_where_models_are_released_none_of_the_devices_own_waits() -> None:
    plan = make_plan().model_copy(update={"rollout": RolloutSettings(mode="manual")})
    device = ready().announced(1, plan=plan).on(BlobFetched("a" * 64), TrainingFinished(1, "u1"), answer("accepted"))
    assert device.agent.candidates == ()
    assert not jobs(device.on(CandidateReady(1, "train")))


def test_a_candidate_survives_a_kill_and_goes_when_it_was_judged(tmp_path: Path) -> None:
    config, store = make_config(tmp_path), StateStore(tmp_path)
    job = make_job(config)
    write_file(job.out / CHECKPOINT, b"trained")
    save_round(store, job)
    (tmp_path / "candidates" / "r9.safetensors").write_bytes(b"of a kill: no row names it")
    agent = load_agent(store)
    assert [(one.round, one.model) for one in agent.candidates] == [(1, job.model)]
    assert [path.name for path in (tmp_path / "candidates").iterdir()] == ["r1.safetensors"]
    assert candidate_path(tmp_path, 1).read_bytes() == b"trained"
    events = Connected(), Announced(announcement(2, "waiting", "b")), DataReady(40)
    assert jobs(Device(replace(agent, judged_global=B)).on(*events)) == [("export", 1)]
    other = Announced(announcement(2, "waiting", "b", instance="f" * 32))
    assert not jobs(Device(agent).on(Connected(), other, DataReady(40)))  # another instance: nothing of it counts
    forget_candidate(store, 1)
    assert load_agent(store).candidates == ()
    assert list((tmp_path / "candidates").iterdir()) == []
    store.close()


def test_a_global_model_that_a_round_left_beside_its_own_is_not_fetched_again_and_else_it_is() -> None:
    rested = Announced(announcement(2, "waiting", "b"))
    device = uploading().announced(2, "b").on(BlobFetched(B), TrainingFinished(2, "u2"), CandidateReady(2, "train"))
    both = Device(device.agent).on(CandidateEvaluated(2, "train", "kept", "not better", with_global=True))
    assert [job.sha256 for job in both.asked(GlobalModelJudged)] == [B]
    assert not both.on(rested).asked(FetchBlob)
    alone = Device(device.agent).on(CandidateEvaluated(2, "train", "kept", "not better"))
    assert [command.model.sha256 for command in alone.asked(FetchBlob)] == [B]


def test_a_device_without_labels_adopts_each_newer_global_model_and_nothing_before_there_is_one() -> None:
    device = Device().on(Connected(), Announced(announcement(0, "waiting", "a")), DataReady(0, measurable=False))
    assert not device.on(Announced(announcement(3, "waiting", "b"))).asked(FetchBlob)  # nothing is known of its sensors
    assert device.on(DataReady(0)).asked(FetchBlob)
    assert jobs(device.on(BlobFetched(B))) == [("adopt", 3)]
    device.on(CandidateReady(3, "adopt"), CandidateEvaluated(3, "adopt", "adopted", "used unchecked"))
    assert device.agent.judged_global == B
    # a round under way names the version before it; the device is not invited
    assert [one.model.sha256 for one in device.on(Announced(announcement(5, "collecting", "c"))).asked(FetchBlob)] == [
        C
    ]
    assert jobs(device.on(BlobFetched(C))) == [("adopt", 4)]


def test_what_a_federation_began_with_is_not_adopted_unless_somebody_has_measured_it() -> None:
    device = Device().on(Connected(), Announced(announcement(0, "waiting", "a")), DataReady(0))
    assert not device.asked(FetchBlob)
    assert not device.on(Announced(announcement(1, "collecting", "a"))).asked(FetchBlob)
    scored = announcement(1, "collecting", "a")
    assert scored.model is not None
    measured = scored.model.model_copy(update={"score": score(9)})
    assert device.on(Announced(scored.model_copy(update={"model": measured}))).asked(FetchBlob)


def test_a_global_model_that_nobody_could_check_waits_for_the_servers_score() -> None:
    device = ready().on(Announced(announcement(3, "waiting", "b")), BlobFetched(B), CandidateReady(3, "adopt"))
    device.on(CandidateEvaluated(3, "adopt", "undecided", "nobody has measured it"))
    again = announcement(3, "waiting", "b")
    assert not device.on(Announced(again)).asked(FetchBlob)
    assert again.model is not None
    measured = again.model.model_copy(update={"score": score(9)})
    assert device.on(Announced(again.model_copy(update={"model": measured}))).asked(FetchBlob)


def test_a_method_without_a_global_model_is_asked_for_one_once() -> None:
    device = ready().on(Announced(announcement(3, "waiting", "b")), BlobFetched(B), CandidateReady(3, "adopt"))
    device.on(CandidateEvaluated(3, "adopt", "none", "the method local has no global model"))
    assert not device.on(Announced(announcement(4, "waiting", "c"))).asked(FetchBlob)
