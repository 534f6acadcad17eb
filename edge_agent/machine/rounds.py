"""The state machine's part for work: a round's download, training, export and evaluation."""

from __future__ import annotations

from dataclasses import replace

from edge_agent.machine import contributions, releases
from edge_agent.machine.commands import (
    Evaluate,
    FetchBlob,
    ForgetCandidate,
    GlobalModelJudged,
    Log,
    SaveAdoptionReport,
    SkipRound,
    StartJob,
    StopJob,
)
from edge_agent.machine.events import (
    AdoptionOutcome,
    BlobFailed,
    BlobFetched,
    CandidateEvaluated,
    CandidateReady,
    Event,
    JobFailed,
    TrainingFinished,
)
from edge_agent.machine.state import Candidate, PendingWork, Stage, leaves_model, next_work
from edge_agent.machine.transition import Transition
from federation.protocol.messages import DEFAULT_METRIC, AdoptionReport, BlobPointer, ModelRefusal
from federation.seeds import seed_for

MAX_BACKOFF_S = 60.0
MAX_CANDIDATES = 1
"""Trained rounds whose models wait to be exported; a newer one replaces them."""


def begin(transition: Transition, work: PendingWork) -> None:
    """Start with the download, if there is one, or wait until the device may train."""
    transition.set(detail="")
    _fetch(transition, work)


def conditions(transition: Transition, start: tuple[str, ...], to_continue: tuple[str, ...]) -> None:
    """Stop training when it may no longer go on, and take it up again when it may begin."""
    transition.set(blockers=start)
    work = transition.agent.work
    if work is None or work.stage is Stage.EVALUATING:
        return
    if work.stage is Stage.BLOCKED:
        _fetch(transition, work)
    elif to_continue:
        _interrupt(transition, work, "; ".join(to_continue))


def _interrupt(transition: Transition, work: PendingWork, reason: str) -> None:
    if work.kind == "train" and work.stage is Stage.EXPORTING:
        drop(transition, reason)
        transition.issue(Log(f"the model of round {work.round} is exported and evaluated later: {reason}"))
        return
    if work.stage in (Stage.TRAINING, Stage.EXPORTING):
        transition.issue(StopJob(reason))
    _block(transition, work)


def _fetch(transition: Transition, work: PendingWork) -> None:
    """Get what the work starts from, if the device may train now; its score may be another by now."""
    if transition.agent.blockers:
        _block(transition, work)
        return
    due = next_work(transition.agent)
    same = due and (due.kind, due.round, due.model.sha256) == (work.kind, work.round, work.model.sha256)
    newer = due and work.continuous and due.continuous and due.kind == work.kind
    if due and (same or newer):
        work = replace(work, model=due.model, round=due.round)
    if work.kind == "export":  # its checkpoint is here
        transition.set(work=work)
        _start_job(transition, work)
        return
    transition.set(work=replace(work, stage=Stage.FETCHING))
    transition.issue(FetchBlob(work.model, _network(transition, work)))


def _block(transition: Transition, work: PendingWork) -> None:
    if work.stage is not Stage.BLOCKED:
        transition.issue(Log(f"{work.name} waits: {'; '.join(transition.agent.blockers)}"))
    transition.set(work=replace(work, stage=Stage.BLOCKED), detail="")


def drop(transition: Transition, reason: str) -> None:
    """Leave the work that is under way, if there is any."""
    if transition.at(Stage.TRAINING) or transition.at(Stage.EXPORTING):
        transition.issue(StopJob(reason))
    transition.set(work=None)


def resume(transition: Transition) -> None:
    """Try again once the rest is over."""
    work = transition.agent.work
    if work and work.stage is Stage.BACKOFF and transition.now >= work.resume_at:
        _fetch(transition, work)


def worked(transition: Transition, event: Event) -> None:
    """Go on after a download, a process or a judgement has come to an end."""
    work = transition.agent.work
    match event:
        case BlobFetched(sha256) if transition.at(Stage.FETCHING) and work and work.model.sha256 == sha256:
            _start_job(transition, work)
        case BlobFailed(sha256, reason) if transition.at(Stage.FETCHING) and work and work.model.sha256 == sha256:
            _back_off(transition, replace(work, fetches=work.fetches + 1), work.fetches, reason)
        case TrainingFinished():
            _trained(transition, event)
        case CandidateReady(number, kind) if transition.at(Stage.EXPORTING) and transition.about(number, kind) and work:
            _candidate(transition, work)
        case JobFailed(number, kind, reason, final) if transition.about(number, kind) and work:
            if event.is_unusable:
                _refuse_model(transition, work, reason)
            _job_failed(transition, work, reason, final)
        case CandidateEvaluated(number, kind) if (
            transition.at(Stage.EVALUATING) and transition.about(number, kind) and work
        ):
            _evaluated(transition, work, event)
        case _:
            pass  # about work that has been dropped since


def _start_job(transition: Transition, work: PendingWork) -> None:
    a = transition.agent.announcement
    if a is None:
        return
    if transition.agent.blockers:
        _block(transition, work)
        return
    transition.stage(Stage.TRAINING if work.kind == "train" else Stage.EXPORTING)
    if work.continuous:
        transition.set(adapted_to=transition.agent.unlabelled)
    network = _network(transition, work)
    request = _sum_request(transition, work)
    transition.issue(
        StartJob(work.kind, work.round, work.model, a.plan, a.chunk_bytes, work.continuous, network, request)
    )


def _sum_request(transition: Transition, work: PendingWork) -> str:
    """Return what the secure sum of the round to be trained asks for; empty where its updates are sent as such."""
    invitation = transition.agent.invitation
    order = invitation.sum if invitation and work.kind == "train" and invitation.round == work.round else None
    return order.body if order and order.kind == "request" else ""


def _network(transition: Transition, work: PendingWork) -> BlobPointer | None:
    """Return the ONNX file that the work needs: of a continuous federation the network of which heads are made, since
    torch's exporter costs far more, and without torch sums; of another one the program, without torch.
    """
    a, without_torch = transition.agent.announcement, transition.policy.runtime == "onnx"
    if a and work.continuous:
        return a.feature_model if without_torch or leaves_model(a.plan) else None
    return a.program if a and without_torch else None


def _candidate(transition: Transition, work: PendingWork) -> None:
    a = transition.agent.announcement
    if work.kind == "train" and a and not leaves_model(a.plan):
        transition.set(work=None, detail="")
        return
    transition.set(unusable=None)
    transition.stage(Stage.EVALUATING)
    transition.issue(Evaluate(work.round, work.kind, work.release, work.model.score, work.model.gains))


def _evaluated(transition: Transition, work: PendingWork, event: CandidateEvaluated) -> None:
    transition.set(work=None, detail="")
    transition.issue(Log(event.reason))
    if work.kind != "adopt":
        _forget_candidate(transition, work.round)
    _report(transition, work, event.answer, event.reason, event)
    if work.release:
        releases.judged(transition, work, event)
    elif event.answer == "none":
        transition.set(lacks_global=True)
        _global_judged(transition, work)
    elif event.answer == "undecided" and work.kind == "adopt" and work.model.score is None:
        transition.set(undecided=work.model.sha256)  # it waits for the server's score
    elif work.kind == "adopt" or event.with_global:
        _global_judged(transition, work)


def _trained(transition: Transition, event: TrainingFinished) -> None:
    work, outbox = transition.agent.work, transition.agent.outbox
    transition.set(unusable=None)
    if work and work.continuous and not contributions.trained(transition, event):
        return
    if event.update_id not in outbox:
        outbox = (*outbox, event.update_id)
    transition.set(outbox=outbox, metrics=event.metrics, detail="")
    if work and (work.continuous or transition.about(event.round, "train")):
        transition.set(done=transition.agent.done | {(work.round, work.model.sha256)})
        transition.stage(Stage.EXPORTING)
        if not work.continuous:
            _note_candidate(transition, work)


def _note_candidate(transition: Transition, work: PendingWork) -> None:
    a = transition.agent.announcement
    if a and not leaves_model(a.plan):
        return
    others = [candidate for candidate in transition.agent.candidates if candidate.round != work.round]
    transition.set(candidates=(*others, Candidate(work.round, work.model)))
    for oldest in others[: len(others) + 1 - MAX_CANDIDATES]:
        transition.issue(Log(f"the model of round {oldest.round} won't be exported, because newer ones wait"))
        _forget_candidate(transition, oldest.round)


def _forget_candidate(transition: Transition, number: int) -> None:
    transition.set(
        candidates=tuple(candidate for candidate in transition.agent.candidates if candidate.round != number)
    )
    transition.issue(ForgetCandidate(number))


def _job_failed(transition: Transition, work: PendingWork, reason: str, final: bool) -> None:
    if work.kind == "export" or (work.kind == "train" and work.stage is Stage.EXPORTING):
        transition.set(work=None)
        transition.issue(Log(f"round {work.round} gave no model, the current one stays: {reason}"))
        _forget_candidate(transition, work.round)
        _report(transition, work, "failed", reason)
    elif final:
        _skip(transition, work, reason)
    elif work.attempt < transition.policy.attempts:
        _back_off(transition, replace(work, attempt=work.attempt + 1), work.attempt, reason)
    else:
        _skip(transition, work, f"{work.attempt} attempts failed, the last one: {reason}")


def _refuse_model(transition: Transition, work: PendingWork, reason: str) -> None:
    """Say of the server's model that it can't be used: what a majority says so of is withdrawn."""
    instance, epoch = transition.agent.identity.partition("/")[0], transition.agent.epoch
    transition.set(unusable=ModelRefusal(instance=instance, epoch=epoch, model=work.model.sha256, reason=reason[:500]))


def _skip(transition: Transition, work: PendingWork, reason: str) -> None:
    transition.set(work=None, detail=reason)
    if work.kind == "adopt":
        _report(transition, work, "failed", reason)
    if work.release:
        transition.issue(Log(f"{work.name} is not adopted, the current model stays: {reason}"))
        releases.failed(transition, work, reason)
        return
    if work.kind == "adopt":
        transition.issue(Log(f"the global model is not adopted, the current one stays: {reason}"))
        _global_judged(transition, work)
        return
    if work.continuous:
        contributions.failed(transition, reason)
        return
    transition.set(
        done=transition.agent.done | {(work.round, work.model.sha256)}, answered=transition.agent.answered + 1
    )
    transition.issue(Log(f"round {work.round} is skipped: {reason}"), SkipRound(work.round, work.model.sha256, reason))


def _report(
    transition: Transition,
    work: PendingWork,
    answer: AdoptionOutcome,
    reason: str,
    found: CandidateEvaluated | None = None,
) -> None:
    """Say what became of a candidate; where there was none by the method's nature, nothing is to be said."""
    if answer == "none":
        return
    report = AdoptionReport(
        instance=transition.agent.identity.partition("/")[0],
        epoch=transition.agent.epoch,
        round=work.round,
        source=(found and found.source) or ("global" if work.kind == "adopt" else "personalized"),
        answer=answer,
        score=found.score if found else None,
        trivial=found.trivial if found else None,
        metric=(found and found.metric) or DEFAULT_METRIC,
        reason=reason[:500],
    )
    transition.set(adoption=report)
    transition.issue(SaveAdoptionReport(report))


def _global_judged(transition: Transition, work: PendingWork) -> None:
    transition.set(judged_global=work.model.sha256)
    if work.continuous:
        version = work.round - 1 if work.kind == "train" else work.round
        transition.set(refreshed=version, refresh_at=transition.now + transition.policy.refresh_s)
    transition.issue(GlobalModelJudged(work.model.sha256))


def _back_off(transition: Transition, work: PendingWork, failures: int, reason: str) -> None:
    # the jitter is drawn from the device's name, so that a fleet does not come back in step
    jitter = 0.5 + seed_for(0, transition.policy.device, work.round, failures) % 1000 / 1000
    rest_s = min(MAX_BACKOFF_S, transition.policy.retry_s * 2 ** (failures - 1)) * jitter
    transition.set(work=replace(work, stage=Stage.BACKOFF, resume_at=transition.now + rest_s), detail=reason)
    transition.issue(Log(f"{reason}; next attempt in {rest_s:.1f} s"))
