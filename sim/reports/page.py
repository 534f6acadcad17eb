"""Pages of sections: as one self-contained HTML file without script or network, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from sim.reports.figures.style import draw
from sim.reports.report import data_uri, render
from sim.reports.table import ReportTable, escaped, markdown_table


class CaptionedFigure(NamedTuple):
    """A figure and what it shows."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class ReportSection:
    """What is said of one thing; figures go by their files' names, which begin with the section's where it has one.

    `values` are the section's numbers for a program: JSON.
    """

    name: str
    title: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, CaptionedFigure] = field(default_factory=dict)
    tables: Sequence[ReportTable] = ()
    warnings: Sequence[str] = ()

    @property
    def files(self) -> dict[str, CaptionedFigure]:
        """The figures by the names of their PNG files."""
        return {f"{self.name}_{key}" if self.name else key: figure for key, figure in self.figures.items()}


@dataclass(frozen=True)
class ReportPage:
    """Sections, below them a list of terms with their meanings; `starts` are the columns that begin a table's block."""

    title: str
    sections: Sequence[ReportSection]
    terms_title: str
    terms: Mapping[str, str]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    starts: frozenset[str] = frozenset()


def html(page: ReportPage, folder: Path) -> str:
    """Draw the figures as PNG files into a folder, and return the page with all of them inside."""
    figures = {name: captioned.figure for section in page.sections for name, captioned in section.files.items()}
    uris = {path.stem: data_uri(path) for path in draw(figures, folder)}
    return render("page.html", page=page, uris=uris)


def markdown(page: ReportPage) -> str:
    """Write a page without its figures."""
    parts = [f"# {escaped(page.title)}", *_quoted(page.warnings)]
    for section in page.sections:
        parts += [f"## {escaped(section.title)}", *_quoted(section.warnings), section.text]
        for table in section.tables:
            parts += [part for part in (table.title and f"{table.title}:", markdown_table(table), table.note) if part]
    terms = "\n".join(f"- **{name}**: {meaning}" for name, meaning in page.terms.items())
    return "\n\n".join([*parts, f"## {page.terms_title}", terms, *map(escaped, page.notes)]) + "\n"


def _quoted(warnings: Sequence[str]) -> Iterator[str]:
    if warnings:
        yield "\n".join(f"> - {escaped(warning)}" for warning in warnings)
