"""What a run calls while it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sim.results.run_directory import RunDirectory
from sim.scores.records import RoundRecord, Summary


class RunCallback:
    """Override what is of interest; each method does nothing by itself.

    What they raise ends the run as any other error does; its rounds up to the last checkpoint are kept.
    """

    def on_start(self, run: RunDirectory, rounds_done: int) -> None:
        """Called before the first round, with the rounds that an interrupted run has done already."""

    def on_round(self, record: RoundRecord) -> None:
        """Called after each round, with what its line of `rounds.jsonl` says."""

    def on_end(self, run: RunDirectory, summary: Summary) -> None:
        """Called once the summary and the models are written."""

    def on_error(self, error: BaseException) -> None:
        """Called if the run ends early, also by Ctrl-C; the same command resumes it."""


def round_scores(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Yield a round's numbers under names such as `personalization/macro_f1`, those that it has."""
    spreads = {
        "personalization": record.personalization,
        "generalization": record.generalization,
        "validation": record.validation,
    }
    for score, spread in spreads.items():
        yield from ((f"{score}/{metric}", each.mean) for metric, each in (spread or {}).items())
    yield from _known("global", record.global_ or {})
    yield from _known("train", {"loss": record.train_loss})
    yield from (
        ("client_bytes/up", record.bytes_up),
        ("client_bytes/down", record.bytes_down),
        ("seconds", sum(record.seconds.values())),
    )


def final_scores(summary: Summary) -> Iterator[tuple[str, float]]:
    """Yield the numbers of the round that is to be trusted, under `final/…`, and the new clients' by their shots."""
    chosen = summary.selected(summary.trusted)
    if chosen is not None:
        for score, spread in (("personalization", chosen.personalization), ("generalization", chosen.generalization)):
            yield from ((f"final/{score}/{metric}", each.mean) for metric, each in (spread or {}).items())
        yield from _known("final/global", chosen.global_ or {})
    if summary.new_clients:
        for shots, spread in summary.new_clients.shots.items():
            yield from ((f"final/new_{shots}/{metric}", each.mean) for metric, each in (spread or {}).items())


def _known(prefix: str, scores: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    yield from ((f"{prefix}/{name}", value) for name, value in scores.items() if value is not None)
