"""What a run writes while it goes on: a line for each round, and now and then a checkpoint to resume from."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaitway.files import write_file
from sim.results.writing import CHECKPOINT, writing
from sim.rounds import checkpoint
from sim.rounds.checkpoint import Checkpoint

WRITING_SHARE = 0.05
"""Large federations have checkpoints of gigabytes: no more than this share of the time goes into writing them."""


@dataclass
class RunFiles:
    """The files of a run's directory that change with every round."""

    out: Path
    checkpoint_every_s: float
    pause_s: float = 0.0
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def opened(cls, out: Path, checkpoint_every_s: float) -> RunFiles:
        """Make the directory where it is not there yet."""
        with writing("the run's directory", out):
            out.mkdir(parents=True, exist_ok=True)
        return cls(out, checkpoint_every_s, checkpoint_every_s)

    def writing(self, what: str) -> AbstractContextManager[None]:
        """Write `what`; raises RunDirectoryError, saying what is kept, if that fails."""
        return writing(what, self.out)

    def checkpoint(self, device: str) -> Checkpoint | None:
        """Return what an interrupted run has left to resume from; None where the run begins."""
        self.saved_at = time.monotonic()
        return checkpoint.load(self.out / CHECKPOINT, device)

    def keep_rounds(self, rounds: int) -> None:
        """Drop the lines that a kill left after the checkpoint; those rounds are played again."""
        path = self.out / "rounds.jsonl"
        with self.writing("the rounds' scores (rounds.jsonl)"):
            lines = path.read_text().splitlines()[:rounds] if path.exists() else []
            write_file(path, "".join(line + "\n" for line in lines).encode())

    def append(self, record: dict[str, Any]) -> None:
        """Write the line of a round."""
        what = f"the scores of round {record['round']} (rounds.jsonl)"
        with self.writing(what), (self.out / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the last checkpoint is old enough for another."""
        return time.monotonic() - self.saved_at >= self.pause_s

    def save(self, state: Checkpoint) -> None:
        """Write a checkpoint."""
        begun = time.monotonic()
        with self.writing(f"the checkpoint of round {state.round_number} ({CHECKPOINT})"):
            checkpoint.save(self.out / CHECKPOINT, state)
        self.saved_at = time.monotonic()
        took = (self.saved_at - begun) / WRITING_SHARE
        self.pause_s = self.checkpoint_every_s and max(self.checkpoint_every_s, took)
