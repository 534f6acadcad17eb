"""The command line that repeats a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sim.reports.report import render, selected_table, write_report
from sim.results.run_directory import RunDirectory
from sim.scores.records import Plain, Spread


class RunResult(Mapping[str, Any]):
    """A mapping of what `summary.json` says, such as `result["personalization"]["macro_f1"]["mean"]`.

    In a notebook it shows its scores; `run` reads everything else that the run wrote.
    """

    def __init__(self, summary: Mapping[str, Any], path: Path) -> None:
        self._summary = dict(summary)
        self.run = RunDirectory(path)

    def __getitem__(self, key: str) -> Any:
        """Return an entry of the summary."""
        return self._summary[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the summary's keys."""
        return iter(self._summary)

    def __len__(self) -> int:
        """Return how many entries the summary has."""
        return len(self._summary)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each round: scores as means over clients, training loss, bytes of a client, and seconds.

        Scores are between 0 and 1, and missing where a round was not scored.
        """
        rows = [
            {
                "round": record.round,
                "train_loss": record.train_loss,
                **_means("personalization", record.personalization),
                **_means("generalization", record.generalization),
                **_plain("global", record.global_),
                **_means("validation", record.validation),
                "bytes_up": record.bytes_up,
                "bytes_down": record.bytes_down,
                "seconds": sum(record.seconds.values()),
            }
            for record in self.run.rounds
        ]
        return pd.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")

    def clients_to_frame(self) -> pd.DataFrame:
        """Return a row for each client: examples, and its scores in the round that claims may rest on."""
        trusted = self.run.summary.trusted if self.run.summary else "last"
        rows = []
        for name, examples in self.run.clients.items():
            scores = self.run.client_scores.get(name)
            chosen = scores.selected(trusted) if scores else None
            row = {"client": name, "train": examples.train, "test": examples.test}
            for score in ("personalization", "generalization", "global_"):
                row |= _plain(score.rstrip("_"), getattr(chosen, score) if chosen else None)
            rows.append(row)
        return pd.DataFrame(rows, columns=None if rows else ["client"]).set_index("client")

    def report(self) -> Path:
        """Draw the figures, write `report.html` into the run's directory, and return its path."""
        return write_report(self.run)

    def _repr_html_(self) -> str:
        """Return the scores of the chosen rounds as a table, which notebooks show."""
        return render(
            "result.html", title=self._title(), table_of_scores=selected_table(self.run), path=str(self.run.path)
        )

    def __repr__(self) -> str:
        """Name the run and its main score."""
        metric, kind = self.run.config.primary
        summary = self.run.summary
        chosen = summary.selected(summary.trusted) if summary else None
        own = chosen.personalization if chosen else None
        unit = kind.unit.strip(" ()")  # a heading's brackets
        score = f", personalization {kind.label} {kind.text(own[metric].mean)} {unit}".rstrip() if own else ""
        return f"<RunResult {self._title()}{score}: {self.run.path}>"

    def _title(self) -> str:
        config = self.run.config
        return f"{config.method_name} · {config.model_name} on {config.dataset}, {len(self.run.rounds)} rounds"


def _means(score: str, spread: Spread | None) -> dict[str, float]:
    return {f"{score}_{metric}": statistic.mean for metric, statistic in (spread or {}).items()}


def _plain(score: str, scores: Plain | None) -> dict[str, float | None]:
    return {f"{score}_{metric}": value for metric, value in (scores or {}).items()}
