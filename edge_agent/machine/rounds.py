"""The half of the state machine that is about work: a round's download, training, export and judgement."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.machine import releases
from edge_agent.machine.commands import FetchBlob, FinalJudged, GiveUp, Judge, NoteAdoption, Say, StartJob, StopJob
from edge_agent.machine.events import (
    AdoptFinished,
    Answer,
    BlobFailed,
    BlobFetched,
    CandidateReady,
    Event,
    JobFailed,
    TrainingFinished,
)
from edge_agent.machine.state import Stage, Work, wanted
from edge_agent.machine.transition import Turn
from federation.protocol.messages import AdoptionReport
from federation.seeds import seed_for

LONGEST_REST_S = 60.0


def begin(turn: Turn, work: Work) -> None:
    """Start with the download, or wait until the device may train."""
    turn.set(detail="")
    _fetch(turn, work)


def conditions(turn: Turn, start: tuple[str, ...], go_on: tuple[str, ...]) -> None:
    """Stop training when it may no longer go on, and take it up again when it may begin."""
    turn.set(hold=start)
    work = turn.agent.work
    if work is None or work.stage is Stage.JUDGING:
        return
    if work.stage is Stage.HELD:
        _fetch(turn, work)
    elif go_on:
        _interrupt(turn, work, "; ".join(go_on))


def _interrupt(turn: Turn, work: Work, reason: str) -> None:
    if work.kind == "train" and work.stage is Stage.EXPORTING:
        drop(turn, reason)
        turn.ask(Say(f"round {work.round} gave no model of its own, the present one stays: {reason}"))
        return
    if work.stage in (Stage.TRAINING, Stage.EXPORTING):
        turn.ask(StopJob(reason))
    _hold(turn, work)


def _fetch(turn: Turn, work: Work) -> None:
    """Download what the work starts from, if the device may train now; its score may be another by now."""
    if turn.agent.hold:
        _hold(turn, work)
        return
    asked = wanted(turn.agent)
    if asked and (asked.kind, asked.round, asked.model.sha256) == (work.kind, work.round, work.model.sha256):
        work = replace(work, model=asked.model)
    turn.set(work=replace(work, stage=Stage.FETCHING))
    turn.ask(FetchBlob(work.model))


def _hold(turn: Turn, work: Work) -> None:
    if work.stage is not Stage.HELD:
        turn.ask(Say(f"{work.name} waits: {'; '.join(turn.agent.hold)}"))
    turn.set(work=replace(work, stage=Stage.HELD), detail="")


def drop(turn: Turn, reason: str) -> None:
    """Leave the work that is under way, if there is any."""
    if turn.at(Stage.TRAINING) or turn.at(Stage.EXPORTING):
        turn.ask(StopJob(reason))
    turn.set(work=None)


def resume(turn: Turn) -> None:
    """Try again once the rest is over."""
    work = turn.agent.work
    if work and work.stage is Stage.RESTING and turn.now >= work.resume_at:
        _fetch(turn, work)


def worked(turn: Turn, event: Event) -> None:
    """Go on after a download, a process or a judgement has come to an end."""
    work = turn.agent.work
    match event:
        case BlobFetched(sha256) if turn.at(Stage.FETCHING) and work and work.model.sha256 == sha256:
            _start_job(turn, work)
        case BlobFailed(sha256, reason) if turn.at(Stage.FETCHING) and work and work.model.sha256 == sha256:
            _rest(turn, replace(work, fetches=work.fetches + 1), work.fetches, reason)
        case TrainingFinished():
            _trained(turn, event)
        case CandidateReady(number, kind) if turn.at(Stage.EXPORTING) and turn.about(number, kind) and work:
            _candidate(turn, work)
        case JobFailed(number, kind, reason, final) if turn.about(number, kind) and work:
            _job_failed(turn, work, reason, final)
        case AdoptFinished(number, kind) if turn.at(Stage.JUDGING) and turn.about(number, kind) and work:
            _judged(turn, work, event)
        case _:
            pass  # about work that has been dropped since


def _start_job(turn: Turn, work: Work) -> None:
    a = turn.agent.announcement
    if a is None:
        return
    if turn.agent.hold:
        _hold(turn, work)
        return
    turn.stage(Stage.TRAINING if work.kind == "train" else Stage.EXPORTING)
    turn.ask(StartJob(work.kind, work.round, work.model, a.plan, a.chunk_bytes))


def _candidate(turn: Turn, work: Work) -> None:
    a = turn.agent.announcement
    if work.kind == "train" and a and a.plan.rollout.used:
        turn.set(work=None, detail="")  # the round has left no model: devices use what is released
        return
    turn.stage(Stage.JUDGING)
    turn.ask(Judge(work.round, work.kind, work.release, work.model.score))


def _judged(turn: Turn, work: Work, event: AdoptFinished) -> None:
    turn.set(work=None, detail="")
    turn.ask(Say(event.reason))
    _report(turn, work, event.answer, event.reason, event.score, event.most_frequent)
    if work.release:
        releases.judged(turn, work, event.answer, score=event.score, reason=event.reason)
    elif work.kind == "adopt":
        _final(turn, work)


def _trained(turn: Turn, event: TrainingFinished) -> None:
    work, outbox = turn.agent.work, turn.agent.outbox
    if event.update_id not in outbox:
        outbox = (*outbox, event.update_id)
    turn.set(outbox=outbox, metrics=event.metrics, detail="")
    if work and turn.about(event.round, "train"):
        turn.set(done=turn.agent.done | {(work.round, work.model.sha256)})
        turn.stage(Stage.EXPORTING)


def _job_failed(turn: Turn, work: Work, reason: str, final: bool) -> None:
    if work.kind == "train" and work.stage is Stage.EXPORTING:
        turn.set(work=None)
        turn.ask(Say(f"round {work.round} gave no model of its own, the present one stays: {reason}"))
        _report(turn, work, "failed", reason)
    elif final:
        _give_up(turn, work, reason)
    elif work.attempt < turn.policy.attempts:
        _rest(turn, replace(work, attempt=work.attempt + 1), work.attempt, reason)
    else:
        _give_up(turn, work, f"{work.attempt} tries failed, the last one: {reason}")


def _give_up(turn: Turn, work: Work, reason: str) -> None:
    turn.set(work=None, detail=reason)
    if work.kind == "adopt":
        _report(turn, work, "failed", reason)
    if work.release:
        turn.ask(Say(f"{work.name} is not adopted, the present model stays: {reason}"))
        releases.failed(turn, work, reason)
        return
    if work.kind == "adopt":
        turn.ask(Say(f"the final model is not adopted, the present one stays: {reason}"))
        _final(turn, work)
        return
    turn.set(done=turn.agent.done | {(work.round, work.model.sha256)}, settled=turn.agent.settled + 1)
    turn.ask(Say(f"round {work.round} is left out: {reason}"), GiveUp(work.round, work.model.sha256, reason))


def _report(
    turn: Turn,
    work: Work,
    answer: Answer,
    reason: str,
    score: float | None = None,
    most_frequent: float | None = None,
) -> None:
    """Say what became of a candidate; where there was none by the method's nature, nothing is to be said."""
    if answer == "none":
        return
    report = AdoptionReport(
        instance=turn.agent.identity.partition("/")[0],
        epoch=turn.agent.epoch,
        round=work.round,
        source="personalized" if work.kind == "train" else "global",
        answer=answer,
        score=score,
        most_frequent=most_frequent,
        reason=reason[:500],
    )
    turn.set(adoption=report)
    turn.ask(NoteAdoption(report))


def _final(turn: Turn, work: Work) -> None:
    turn.set(final=work.model.sha256)
    turn.ask(FinalJudged(work.model.sha256))


def _rest(turn: Turn, work: Work, failures: int, reason: str) -> None:
    # the jitter is drawn from the device's name, so that a fleet does not come back in step
    jitter = 0.5 + seed_for(0, turn.policy.device, work.round, failures) % 1000 / 1000
    rest_s = min(LONGEST_REST_S, turn.policy.retry_s * 2 ** (failures - 1)) * jitter
    turn.set(work=replace(work, stage=Stage.RESTING, resume_at=turn.now + rest_s), detail=reason)
    turn.ask(Say(f"{reason}; next try in {rest_s:.1f} s"))
