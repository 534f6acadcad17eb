"""What one analysis returns: numbers for analysis.json, figures for PNG files, words for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from sim.reports.table import ReportTable


class CaptionedFigure(NamedTuple):
    """A figure and what it shows."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class AnalysisSection:
    """One analysis: `name` is its key in analysis.json and begins its figures' names; `values` is JSON."""

    name: str
    title: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, CaptionedFigure] = field(default_factory=dict)
    table: ReportTable | None = None
