"""Whether a device takes a released model: it must work, and must not be worse than the present one beyond chance.

The operator asked for it, so it need not be better. A `refused` can halt the rollout, so it takes significance.
"""

from __future__ import annotations

from edge_agent.machine.events import AdoptionOutcome
from edge_agent.serving.model_runs import ModelEvaluation, Windows
from edge_agent.training.comparison import PairedComparison


def judge_release(
    run: ModelEvaluation, present: ModelEvaluation | None, windows: Windows, *, has_model: bool
) -> tuple[AdoptionOutcome, str]:
    """Say what becomes of a released model that works, and why.

    present: the present model's run; None if it does not run, or there is none.
    """
    score = run.soundness.words
    if present is None:
        why = "the present model does not run any more" if has_model else "there was no model before"
        return "adopted", "; ".join(filter(None, [score, why]))
    if not len(windows.groups):
        return "adopted", "there are no held-out examples to compare it with the present model"
    paired = PairedComparison.of(windows.groups, run.quality, present.quality)
    why = f"{score} and {present.score:.3f} of the present model; {paired.words}"
    if run.gain(present) >= 0 and present.soundness.failure_reason:
        return "adopted", f"{why}; the present model does not work: {present.soundness.failure_reason}"
    if run.gain(present) >= 0 and not paired.is_worse:
        return "adopted", f"{why}; a released model need not be better, and it is no worse"
    if run.gain(present) <= 0 and paired.is_worse:
        return "refused", f"{why}; it is worse"
    return "kept", f"{why}; it scores lower here, so the present model stays"
