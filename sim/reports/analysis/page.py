"""One self-contained page of sections, without script or network; beside it the PNG files and the numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gaitway.files import write_file
from sim.reports.analysis.section import AnalysisSection
from sim.reports.figures.style import draw
from sim.reports.report import data_uri, render


def write_page(folder: Path, title: str, sections: Sequence[AnalysisSection], missing: Mapping[str, str]) -> Path:
    """Write `SECTION_FIGURE.png`, analysis.json and analysis.html into a folder, and return the page's path.

    `missing` says of each analysis that could not be made why; it is shown and written too.
    """
    folder.mkdir(parents=True, exist_ok=True)  # there may be nothing to draw
    uris = {section.name: _drawn(section, folder) for section in sections}
    values = {"schema": 1, "title": title, **{section.name: section.values for section in sections}}
    text = json.dumps({**values, "missing": dict(missing)}, indent=1) + "\n"
    write_file(folder / "analysis.json", text.encode())
    html = render("analysis.html", title=title, sections=sections, uris=uris, missing=missing)
    write_file(folder / "analysis.html", html.encode())
    return folder / "analysis.html"


def _drawn(section: AnalysisSection, folder: Path) -> dict[str, str]:
    """Draw a section's figures, and return each as a `data:` address."""
    figures = {f"{section.name}_{name}": figure.figure for name, figure in section.figures.items()}
    return dict(zip(section.figures, map(data_uri, draw(figures, folder)), strict=True))
