"""A run as event files for TensorBoard, in the folder `tensorboard` of the run's directory."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from sim.results.run_directory import RunDirectory
from sim.results.tracking import RunCallback, final_scores, round_scores
from sim.scores.records import RoundRecord, Summary

FOLDER = "tensorboard"


class TensorBoardTracker(RunCallback):
    """Writes each round's scores as scalars, and the options as text."""

    def __init__(self, out: Path) -> None:
        self._folder = out / FOLDER
        self._writer: SummaryWriter | None = None

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        """Open the folder; what an interrupted run wrote of rounds that are done again is replaced."""
        self._writer = SummaryWriter(str(self._folder), purge_step=rounds_done + 1)
        if not rounds_done:
            self._writer.add_text("config", f"```\n{run.config.model_dump_json(indent=1, by_alias=True)}\n```")

    def on_round(self, record: RoundRecord) -> None:
        """Write a round's scores, so that they can be seen at once."""
        if self._writer:
            for name, value in round_scores(record):
                self._writer.add_scalar(name, value, record.round)
            self._writer.flush()

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        """Write the scores of the round that counts."""
        if self._writer:
            for name, value in final_scores(summary):
                self._writer.add_scalar(name, value, summary.rounds)
            self._writer.close()

    def on_error(self, error: BaseException) -> None:
        """Close the files; a resumed run writes further ones."""
        if self._writer:
            self._writer.close()
