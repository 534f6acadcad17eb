"""All analyses of one run, written to DIR/analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gaitway.files import write_file
from sim.errors import AnalysisError
from sim.reports.analysis.attention import attention
from sim.reports.analysis.convergence import convergence
from sim.reports.analysis.discrepancy import discrepancies, discrepancy, mean_by_round, reference_of
from sim.reports.analysis.embedding import embedding
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.margin import margin
from sim.reports.analysis.pixels import pixels
from sim.reports.analysis.rounds import classes, rounds
from sim.reports.analysis.sensitivity import sensitivity
from sim.reports.analysis.together import together
from sim.reports.analysis.tokens import tokens
from sim.reports.page import ReportPage, ReportSection, html
from sim.results.run_directory import RunDirectory

Analysis = Callable[[FinishedRun], ReportSection]

ALWAYS: Mapping[str, Analysis] = {
    "features": embedding,
    "pixels": pixels,
    "tokens": tokens,
    "convergence": convergence,
    "attention": attention,
    "aggregate_margin": margin,
    "analyses": rounds,
    "classes": classes,
}
"""What every run is asked for; where it has no material the page says why."""


def analyse(run: FinishedRun, *, centralized: FinishedRun | None = None, against: FinishedRun | None = None) -> Path:
    """Write DIR/analysis with its page analysis.html, and return the page's path.

    Raises:
        AnalysisError: if what was asked for by name (`centralized`, `against`) cannot be had.
    """
    # first, so that what fails fails before the long t-SNE
    comparisons = [] if centralized is None else [discrepancy(run, centralized, against)]
    sections, missing = _possible(run)
    config = run.directory.config
    title = f"Analysis of {config.method_name} on {config.dataset} with {config.model_name}"
    return write_page(run.directory.path / "analysis", title, [*sections, *comparisons], missing)


def analyse_together(
    paths: Sequence[Path], folder: Path, open_run: Callable[[Path], FinishedRun], centralized: FinishedRun | None = None
) -> Path:
    """Write a page about several runs into a folder, and return its path.

    Raises:
        AnalysisError: if a run is not finished, or their features can't be compared with the centralized run's.
    """
    runs, mmd = [RunDirectory(path) for path in paths], {}
    if centralized is not None:
        reference = reference_of(centralized)
        opened = (open_run(path) for path in paths)
        mmd = {str(run.directory.path): mean_by_round(discrepancies(run, centralized, reference)) for run in opened}
    sections, missing = [together(runs, mmd)], {}
    try:
        sections += sensitivity(paths)
    except AnalysisError as error:
        missing["sensitivity"] = str(error)
    return write_page(folder, f"{len(runs)} runs together", sections, missing)


def _possible(run: FinishedRun) -> tuple[list[ReportSection], dict[str, str]]:
    sections, missing = [], {}
    for number, (name, make) in enumerate(ALWAYS.items()):
        run.progress(name, number, len(ALWAYS))
        try:
            sections.append(make(run))
        except AnalysisError as error:
            missing[name] = str(error)
    return sections, missing


def write_page(folder: Path, title: str, sections: Sequence[ReportSection], missing: Mapping[str, str]) -> Path:
    """Write `SECTION_FIGURE.png`, analysis.json and analysis.html into a folder, and return the page's path.

    `missing` says of each analysis that could not be made why; it is shown and written too.
    """
    page = ReportPage(title, sections, "What this run has no material for", missing)
    text = html(page, folder)
    values = {"schema": 1, "title": title, **{section.name: section.values for section in sections}}
    write_file(folder / "analysis.json", (json.dumps({**values, "missing": dict(missing)}, indent=1) + "\n").encode())
    write_file(folder / "analysis.html", text.encode())
    return folder / "analysis.html"
