"""All analyses of one run, written to DIR/analysis, and those of the rounds of several runs together, by method.

Michieli and Ozay 2021 (arXiv 2105.08982), figures 2 to 5 and S2, tables 2 and 4.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from gaitway.files import write_file, write_json
from sim.errors import AnalysisError
from sim.reports.analysis.attention import (
    WEIGHTS_CAPTION,
    attention,
    client_weights,
    final_weights,
    tokens,
    weights_figure,
)
from sim.reports.analysis.convergence import classes, convergence, rounds
from sim.reports.analysis.discrepancy import discrepancies, discrepancy, ffd, margin, mean_by_round, reference_of
from sim.reports.analysis.embedding import embedding
from sim.reports.analysis.finished import FinishedRun
from sim.reports.analysis.pixels import pixels
from sim.reports.analysis.sensitivity import check_alike, sensitivity, shown
from sim.reports.comparison.records import settings_of
from sim.reports.figures.run_figures import MEASURES, measured_rounds
from sim.reports.figures.style import by_round, explain, heading, line_style, new_panels, plain_text
from sim.reports.page import CaptionedFigure, ReportPage, ReportSection, html
from sim.reports.table import ReportTable, table_of
from sim.results.run_directory import RunDirectory

TEXT = """Mean ± standard deviation (n − 1) over the runs of each method, which may differ in the seed and in the share
of stragglers δ. The table has the last round's values. Lines are moving averages over a tenth of the rounds."""
BASELINE = "fedavg"
WITHIN = frozenset({"stragglers"})
"""Settings in which runs of one line may differ."""

Rounds = Mapping[int, float]
Methods = Mapping[str, Sequence[RunDirectory]]


class Measure(NamedTuple):
    """What an axis says, and the values by round of every run, by method; runs without any are left out."""

    label: str
    methods: Mapping[str, Sequence[Rounds]]


def together(runs: Sequence[RunDirectory], mmd: Mapping[str, Rounds]) -> ReportSection:
    """Draw the runs' measures by round and their weights, and set the last round's values side by side.

    `mmd` are discrepancies from a centralized model by the run's path; {} where there is no such model.

    Raises:
        AnalysisError: if a run is not finished, or the runs learnt different tasks.
    """
    check_alike(runs)
    methods = by_method(runs)
    measures = measures_of(methods, mmd)
    last = max(run.rounds[-1].round for run in runs)
    figures = {
        name: CaptionedFigure(_figure(measure, last), f"{measure.label}: mean and standard deviation over runs.")
        for name, measure in measures.items()
    }
    weights = {
        name: [share for run in own for share in final_weights(client_weights(run))] for name, own in methods.items()
    }
    if weights := {name: own_weights for name, own_weights in weights.items() if own_weights}:
        figures["weights"] = CaptionedFigure(weights_figure(weights), WEIGHTS_CAPTION)
    values = {
        name: {method: [rounds[max(rounds)] for rounds in own] for method, own in measure.methods.items()}
        for name, measure in measures.items()
    }
    return ReportSection("together", "Runs by method", TEXT, values, figures, [_table(methods, measures, values)])


def by_method(runs: Sequence[RunDirectory]) -> Methods:
    """Group runs by method and, within a method, by the settings in which its runs differ otherwise."""
    settings = [settings_of(run) for run in runs]
    groups: dict[str, list[RunDirectory]] = {}
    for run, own in zip(runs, settings, strict=True):
        alike = [other for other in settings if other["method.name"] == own["method.name"]]
        differ = [
            key for key in sorted(own) if key not in WITHIN and any(other.get(key) != own[key] for other in alike)
        ]
        label = ", ".join([run.config.method_name, *(f"{key.rpartition('.')[2]}={shown(own[key])}" for key in differ)])
        groups.setdefault(label, []).append(run)
    return groups


def measures_of(methods: Methods, mmd: Mapping[str, Rounds]) -> dict[str, Measure]:
    """Return what the runs measured: the score of the server's model, what `--analyses` records, and `mmd`."""
    first = next(iter(methods.values()))[0]
    name = "accuracy" if "accuracy" in first.config.metrics else first.config.primary[0]
    label = f"server's {heading(first.config.metrics[name])}"
    found = {name: Measure(label, _each(methods, partial(_scores, metric=name)))}
    for key, label in MEASURES.items():
        found[key] = Measure(label, _each(methods, partial(measured_rounds, measure=key)))
    found["mmd"] = Measure("MMD", _each(methods, lambda run: mmd.get(str(run.path), {})))
    return {key: measure for key, measure in found.items() if measure.methods}


def _each(methods: Methods, measured: Callable[[RunDirectory], Rounds]) -> dict[str, list[Rounds]]:
    found = {method: [rounds for run in runs if (rounds := measured(run))] for method, runs in methods.items()}
    return {method: all_rounds for method, all_rounds in found.items() if all_rounds}


def _scores(run: RunDirectory, metric: str) -> Rounds:
    """Return a score of the server's model, in the metric's own unit."""
    found = {record.round: record.mean("global", metric) for record in run.rounds}
    factor = run.config.metrics[metric].factor
    return {number: factor * value for number, value in found.items() if value is not None}


def _figure(measure: Measure, last: int) -> Figure:
    figure, (axes,) = new_panels(3.4)
    for index, (method, runs) in enumerate(measure.methods.items()):
        numbers = sorted(set.intersection(*(set(rounds) for rounds in runs)))
        values = np.array([smoothed({number: rounds[number] for number in numbers}, last / 10) for rounds in runs])
        style, mean = line_style(index, len(numbers)), values.mean(0)
        axes.plot(numbers, mean, label=plain_text(method), **style)
        if len(runs) > 1:
            std = values.std(0, ddof=1)
            axes.fill_between(numbers, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
    by_round(axes, measure.label, last)
    axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))  # a spread reaches below what a measure can
    explain(figure, axes, "outside upper center", 4)
    return figure


def smoothed(rounds: Rounds, window: float) -> list[float]:
    """Return at each round the mean of the values of the last `window` rounds, that round's included."""
    return [statistics.fmean(v for n, v in rounds.items() if number - window < n <= number) for number in rounds]


def _table(
    methods: Methods, measures: Mapping[str, Measure], values: Mapping[str, Mapping[str, list[float]]]
) -> ReportTable:
    means = {method: statistics.fmean(numbers) for method, numbers in values.get("mmd", {}).items()}
    rows = []
    for method, runs in methods.items():
        cells = [_mean_std(values[name].get(method, [])) for name in measures]
        closer = f"{ffd(means[method], means[BASELINE]):.1f} %" if method in means and BASELINE in means else "–"
        rows.append((method, len(runs), *cells, *([closer] if means else [])))
    head = ("", "runs", *(measure.label for measure in measures.values()), *([f"FFD from {BASELINE}"] if means else []))
    return table_of(head, rows)


def _mean_std(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


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
    write_json(folder / "analysis.json", {**values, "missing": dict(missing)})
    write_file(folder / "analysis.html", text.encode())
    return folder / "analysis.html"
