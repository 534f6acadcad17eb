"""`python -m sim compare`: several runs in one table like the papers' Table 1, as JSON, Markdown, HTML and curves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sim.comparison import Comparison, Group, compare_runs
from sim.errors import RunDirectoryError
from sim.figures import draw
from sim.plots import overlay
from sim.report import data_uri, render
from sim.run_directory import RunDirectory
from sim.tables import CHOICE, DEFINITIONS, RANKS_NOTE, SEEDS_NOTE, comparison_table, markdown


def compare(paths: Sequence[Path], out: Path) -> Comparison:
    """Compare runs and write comparison.{json,md,html} and one PNG of curves per group into `out`.

    Raises:
        RunDirectoryError: if a path is not a run's directory, or no run among them is finished.
    """
    unique = {path.resolve(): RunDirectory(path) for path in paths}
    comparison = compare_runs(list(unique.values()))
    if not comparison.groups:
        came = "; ".join(comparison.warnings) or "no directory was given"
        raise RunDirectoryError(f"nothing to compare: {came}; expected at least one finished run")
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(asdict(comparison), indent=1) + "\n", "utf-8")
    (out / "comparison.md").write_text(markdown(comparison), "utf-8")
    (out / "comparison.html").write_text(_html(comparison, out), "utf-8")
    return comparison


def _html(comparison: Comparison, out: Path) -> str:
    groups = []
    for group in comparison.groups:
        head, rows = comparison_table(group)
        curves = [data_uri(path) for path in draw({_file_name(group): overlay(group)}, out)]
        groups.append({"group": group, "head": head, "rows": rows, "curves": curves})
    notes = [CHOICE, RANKS_NOTE, SEEDS_NOTE]
    return render(
        "comparison.html",
        comparison=comparison,
        groups=groups,
        definitions=DEFINITIONS,
        notes=notes,
        starts=("pers. F1", "pers. acc.", "up", "rounds"),
    )


def _file_name(group: Group) -> str:
    return "curves-" + re.sub(r"[^\w-]+", "-", f"{group.data}-{group.model}")
