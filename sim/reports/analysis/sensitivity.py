"""How scores answer to options in which runs differ: β, γ, G, λ, or whatever was swept.

Ek et al. 2024 (arXiv 2411.10595), ablations over β and the numbers of prototypes.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaitway.tasks import Metric
from sim.errors import AnalysisError
from sim.reports.comparison.records import settings_of
from sim.reports.figures.style import clean, explain, heading, line_style, new_panels, plain_text
from sim.reports.page import CaptionedFigure, ReportSection
from sim.reports.table import ReportTable, table_of
from sim.results.run_directory import RunDirectory
from sim.scores.records import Summary

SCORES = ("personalization", "generalization", "global")
TEXT = """{metric} of runs that differ in {key} and, along one line, in nothing else but the seed."""
CAPTION = """Mean over seeds; bars are one standard deviation over seeds where there are several. Values stand at even
distances, in ascending order."""
MAX_LINES = 12


class Point(NamedTuple):
    """One value of an option: the mean of a score over seeds, its deviation over them, and how many there are."""

    mean: float
    std: float
    seeds: int


Line = dict[str, dict[str, Point]]
"""Score by the text of the option's value, then by the score's name."""


def sensitivity(paths: Sequence[Path]) -> list[ReportSection]:
    """Return one section for each option that the runs differ in.

    Raises:
        AnalysisError: if a run is not finished, or no two differ in one option alone.
    """
    runs = [RunDirectory(path) for path in paths]
    check_alike(runs)
    settings = [settings_of(run) for run in runs]
    keys = sorted({key for given in settings for key in given if len({repr(other.get(key)) for other in settings}) > 1})
    found = {key: _lines(key, keys, runs, settings) for key in keys}
    sections = [_section(key, lines, runs[0].config.primary[1]) for key, lines in found.items() if lines]
    if not sections:
        differ = f"they differ in {', '.join(keys)} together" if keys else "they differ in nothing but the seed"
        raise AnalysisError(f"no two of these {len(runs)} runs differ in one option alone; {differ}")
    return sections


def check_alike(runs: Sequence[RunDirectory]) -> None:
    """Refuse runs that can't be drawn together.

    Raises:
        AnalysisError: if one is not finished, or they learnt different tasks.
    """
    if len(tasks := sorted({run.config.learnt.name for run in runs})) > 1:
        raise AnalysisError(f"the runs learnt {' and '.join(tasks)}, whose metrics differ; give runs of one task")
    if unfinished := [str(run.path) for run in runs if not run.finished]:
        raise AnalysisError(f"not finished: {', '.join(unfinished)}; repeat their commands to resume them")


def _lines(
    key: str, keys: Sequence[str], runs: Sequence[RunDirectory], settings: Sequence[Mapping[str, Any]]
) -> dict[str, Line]:
    """Group runs that agree in all but `key` and the seed, and keep the groups with two values or more."""
    groups: dict[str, dict[str, list[tuple[Any, Summary]]]] = defaultdict(lambda: defaultdict(list))
    for run, own in zip(runs, settings, strict=True):
        if key in own and run.summary:
            rest = ", ".join(
                f"{other.rpartition('.')[2]}={shown(own[other])}" for other in keys if other != key and other in own
            )
            groups[rest][shown(own[key])].append((own[key], run.summary))
    lines = {}
    for rest, values in groups.items():
        ordered = sorted(values, key=lambda text: _order(values[text][0][0]))
        if len(ordered) > 1:
            metric, _ = runs[0].config.primary
            lines[rest] = {text: _points([summary for _, summary in values[text]], metric) for text in ordered}
    return lines


def shown(value: Any) -> str:
    """Write an option's value shortly: a list of six prototype counts as its first and last."""
    if isinstance(value, (list, tuple)):
        texts = [shown(item) for item in value]
        return f"[{texts[0]}…{texts[-1]}]" if len(texts) > 2 else f"[{', '.join(texts)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: Any) -> tuple[int, Any]:
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
        return 1, tuple(value)
    return (0, value) if isinstance(value, (int, float)) else (2, str(value))


def _points(summaries: Sequence[Summary], metric: str) -> dict[str, Point]:
    values = {
        score: [value for result in summaries if (value := result.mean(score, metric)) is not None] for score in SCORES
    }
    return {
        score: Point(statistics.fmean(numbers), statistics.pstdev(numbers), len(numbers))
        for score, numbers in values.items()
        if numbers
    }


def _section(key: str, lines: Mapping[str, Line], metric: Metric) -> ReportSection:
    if len(lines) > MAX_LINES:
        raise AnalysisError(
            f"{key}: {len(lines)} combinations of the other options; give at most {MAX_LINES} at a time"
        )
    values = {
        rest or "all runs": {
            text: {score: point._asdict() for score, point in entry.items()} for text, entry in line.items()
        }
        for rest, line in lines.items()
    }
    name = key.replace(".", "_")
    text = TEXT.format(key=key, metric=metric.label[0].upper() + metric.label[1:])
    figures = {"scores": CaptionedFigure(_figure(key, lines, metric), CAPTION)}
    return ReportSection(name, f"Sensitivity to {key}", text, values, figures, [_table(lines, metric)])


def _table(lines: Mapping[str, Line], metric: Metric) -> ReportTable:
    rows = []
    for rest, line in lines.items():
        for text, scores in line.items():
            scores_text = " / ".join(metric.text(scores[score].mean) if score in scores else "–" for score in SCORES)
            rows.append((f"{text} ({rest})" if rest else text, scores_text))
    return table_of(("value", " / ".join(SCORES) + f", {heading(metric)}"), rows)


def _figure(key: str, lines: Mapping[str, Line], metric: Metric) -> Figure:
    followed = [score for score in SCORES if any(score in entry for line in lines.values() for entry in line.values())]
    ticks = list(dict.fromkeys(text for line in lines.values() for text in line))
    figure, panels = new_panels(3.6 + 0.2 * len(lines), len(followed))
    for axes, score in zip(panels, followed, strict=True):
        for index, (rest, line) in enumerate(lines.items()):
            points = {ticks.index(text): entry[score] for text, entry in line.items() if score in entry}
            _line(axes, index, rest, points, metric.factor)
        clean(axes, heading(metric), plain_text(key))
        axes.set_title(score, fontsize=11)
        axes.set_xticks(range(len(ticks)), ticks, rotation=0 if max(map(len, ticks)) < 7 else 30)
        axes.margins(x=0.08, y=0.15)
    if len(lines) > 1:
        explain(figure, panels[0], "outside lower center", 2)
    return figure


def _line(axes: Axes, index: int, rest: str, points: Mapping[int, Point], factor: float) -> None:
    means = [factor * point.mean for point in points.values()]
    stds = [factor * point.std for point in points.values()]
    bars = stds if any(point.seeds > 1 for point in points.values()) else None
    axes.errorbar(list(points), means, bars, capsize=4, label=plain_text(rest), **line_style(index, 1))
