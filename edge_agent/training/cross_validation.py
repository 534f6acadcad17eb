"""What a device's windows say of personalization where its holdout is too small: answers out of cross-validation.

The training process trains the round again for each fold, on the windows outside of it (`edge_agent.training.folds`),
and keeps what each of these models answers to the windows that it has not seen. Compared are these answers with those
of the global model to the same windows. That estimates the training, not the one model that came of it.

M. Stone, 'Cross-validatory choice and assessment of statistical predictions', Journal of the Royal Statistical Society
B 36 (1974).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from har_pipeline import ClientWindows

NOT_VALIDATED = -1
MAX_WINDOWS = 4096
"""A device with more has a holdout that can tell, or windows of one class alone."""

Answers = npt.NDArray[np.int64]


class CrossValidation(NamedTuple):
    """The answer (n,) to each window, of a model that was trained without it; windows by session and begin (n,)."""

    folds: int
    session: npt.NDArray[np.int64]
    start_s: npt.NDArray[np.float64]
    answers: Answers

    def to_json(self) -> str:
        """Write it as a file has it."""
        arrays = {name: getattr(self, name).tolist() for name in ("session", "start_s", "answers")}
        return json.dumps({"folds": self.folds, **arrays})

    @classmethod
    def read(cls, path: Path) -> CrossValidation | None:
        """Read a file; None where there is none, or it is damaged: what it said does not count then."""
        try:
            found = json.loads(path.read_bytes())
            session, answers = (np.array(found[name], np.int64) for name in ("session", "answers"))
            made = cls(int(found["folds"]), session, np.array(found["start_s"], np.float64), answers)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return made if len(session) == len(made.start_s) == len(answers) <= MAX_WINDOWS else None

    def answers_to(self, windows: ClientWindows) -> Answers:
        """Return the answer to each window (n,), `NOT_VALIDATED` where there is none: it came later."""
        keys = zip(self.session.tolist(), self.start_s.tolist(), strict=True)
        known = dict(zip(keys, self.answers.tolist(), strict=True))
        wanted = zip(windows.session.tolist(), windows.start_s.tolist(), strict=True)
        return np.array([known.get(key, NOT_VALIDATED) for key in wanted], np.int64)
