"""Pages and figures of results, and numbers in other documents, from declarations and summaries alone.

`docs/results.md` has a row for each arm and the measure by which a table compares; `docs/measures.csv` has all
measures, and the paired differences with their intervals. A cell is the mean over the seeds that have a summary;
without one it is a dash, never a number, and a row without any is left out. Differences to the baseline are paired over
seeds: mean, 95 % by Student's t, and p by Holm over the arms of the same data set (`sim.results.statistics`).

Figures of average ranks follow J. Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006,
section 3.2.2: each arm has a bar of one critical difference (Nemenyi, α = 0.05) around its rank, and two arms differ
where their bars do not touch. They are SVG files of text, the same bytes on every machine.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gaitway.tasks import Metric, metric_of
from sim.errors import SettingsError
from sim.presets.exhibits import all_papers, markdown
from sim.results.statistics import Ranking, holm, interval, rank_over_datasets
from sim.sweep.arena.cells import ArenaCell, Declaration, read_declaration, table_cells, tuned_options
from sim.sweep.arena.measures import MEASURES, CellSummary, Summaries

LETTER, AXIS, ROW, TOP = 7.2, 420, 22, 46
"""Pixels: the width of a letter of a label and of the axis, the height of a row and of what stands above the first."""
INK, BAR, MUTED = "#1b2733", "#7aa6c2", "#6b7680"


def rank_figure(ranks: Mapping[str, float], difference: float, datasets: int) -> str:
    """Return the figure of arms by label; 1 is the best rank, `difference` the critical one."""
    ordered = sorted(ranks.items(), key=lambda pair: pair[1])
    labels = round(24 + LETTER * max(len(label) for label in ranks))
    width, height = labels + AXIS + 30, TOP + ROW * len(ordered) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
        f"<title>Average ranks over {datasets} data sets; critical difference {difference:.1f}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_axis(labels, len(ordered), height),
        *_rows(labels, ordered, difference),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(labels: int, rank: float, arms: int) -> float:
    return labels + AXIS * (rank - 1) / (arms - 1)


def _axis(labels: int, arms: int, height: int) -> Iterator[str]:
    yield f'<text x="{labels}" y="16" fill="{MUTED}">average rank, 1 is best</text>'
    for rank in range(1, arms + 1):
        x = _x(labels, rank, arms)
        yield f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8}" stroke="#e3e7ea"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" fill="{MUTED}">{rank}</text>'


def _rows(labels: int, ordered: list[tuple[str, float]], difference: float) -> Iterator[str]:
    arms = len(ordered)
    for index, (label, rank) in enumerate(ordered):
        y = TOP + ROW * index + ROW // 2
        edges = (min(max(edge, 1.0), float(arms)) for edge in (rank - difference / 2, rank + difference / 2))
        low, high = (_x(labels, edge, arms) for edge in edges)
        yield f'<text x="{labels - 14}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
        yield (
            f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="{BAR}" stroke-width="5" '
            'stroke-linecap="round"/>'
        )
        yield f'<circle cx="{_x(labels, rank, arms):.1f}" cy="{y}" r="4.5"/>'


NOTHING = "–"
MAX_LINE = 120
FIGURES = Path("docs/figures")
"""Where figures lie, from the root of a checkout."""
SIGNIFICANT = 0.05
COMPARISON = ("compared", "difference", "ci_low", "ci_high", "p")
"""Columns of measures.csv: the measure that a table compares by, and its paired difference to the baseline."""
HEAD = """# Results

After this page you can say how the methods compare on real recordings, and repeat any number. If you only want to know
what to start with, read [Which method to start with](methods.md#which-method-to-start-with).

**How to read a table.** Scores are macro-F1 in percent unless the table says otherwise, means over seeds, of the round
that each client's validation windows chose. Parentheses hold the difference to the baseline, the row without any. A
star marks p < 0.05 (paired t-test over seeds, corrected by Holm). On another processor a single run of a network may
differ by a point, or by six where few new users are scored.

**Where the numbers come from.** [measures.csv](measures.csv) has every measure, interval and p value; `docs/results/` a
summary of each run (plan, commit, hardware, hash of the data, seed). `python -m sim arena run NAME --data-root DATA`
makes a table, `python -m sim arena cell KEY` prints the command of one run, and `python -m sim arena render` writes
this page.

Runs of `har_features` dated before 2026-11-29 had 600 random cosines, as `--set model.cosines=600` still gives them.
A table whose dates end on that day has MiniRocket's features on MotionSense and UCI HAR, and cosines on other sets.
[Methods](methods.md#analytic-federated-learning) has what MiniRocket's features change.

In measures.csv, `…_last_ten` is the mean of the last ten rounds. `convergence_round` is the first round within half a
point of the best, and `numbers_k` the thousands of numbers that all clients send in a round. `prototype_distance` is
Σ n_k[c]/N[c] · ‖p_k[c] − P[c]‖²/D over clients k and classes c.
"""
PARTS = {
    "methods": "Methods compared",
    "conditions": "Harder conditions",
    "fedali": "FedAli",
    "papers": "Other papers' claims",
}
"""The headings under which tables stand, by what a declaration says as `part`."""
HEAD_OF_PAPERS = """## The papers, table by table

Scores are percent. `python -m sim presets` prints every table and figure with its command, or with the reason why it
wasn't made; `python -m sim presets tan2022` prints those of one paper.
"""
MARK = re.compile(r"<!--=(?P<what>[^>]*?)-->(?P<text>.*?)<!--/-->", re.DOTALL)
"""`<!--=TABLE/SET/ARM/MEASURE-->…<!--/-->` in a document: what stands between is rendered.

With `MEASURE-OTHER` it is how far the arm is from another one, and the interval."""


class Row(NamedTuple):
    """An arm on one data set: the summaries of its seeds, those that there are."""

    data: str
    arm: str
    label: str
    found: Mapping[int, CellSummary]
    tuned: str

    def values(self, measure: str) -> dict[int, float]:
        """Return a measure by seed, where the run has it."""
        known = {seed: cell.measures.get(measure) for seed, cell in self.found.items()}
        return {seed: value for seed, value in known.items() if value is not None}

    def mean(self, measure: str) -> str:
        """Write a measure's mean over seeds with five digits; empty where no run has it."""
        values = list(self.values(measure).values())
        return f"{float(np.mean(values)):.5g}" if values else ""


class BaselineDifference(NamedTuple):
    """How far an arm is from the baseline, in points: mean over seeds, 95 % interval, p by Holm."""

    mean: float
    low: float | None
    high: float | None
    p: float | None

    def short(self) -> str:
        """Write the mean, with a star where it is significant."""
        return f"{self.mean:+.1f}" + "*" * (self.p is not None and self.p < SIGNIFICANT)

    def cells(self) -> list[str]:
        """Write all four for measures.csv; what one seed cannot tell is empty."""
        return ["" if value is None else f"{value:.3g}" for value in self]


def rows(declaration: Declaration, known: Summaries) -> list[Row]:
    """Return the rows of a table, by data set and arm as they are declared."""
    return [_row(declaration, data, arm, known) for data in declaration.sets for arm in declaration.arms]


def _row(declaration: Declaration, data: str, name: str, known: Summaries) -> Row:
    arm, cells = declaration.arms[name], table_cells(declaration, data, name, known) or []
    found = {cell.seed: known[cell.key] for cell in cells if cell.key in known}
    return Row(data, name, arm.label or name, found, _tuned(declaration, cells) if arm.tune else "")


def _tuned(declaration: Declaration, cells: Sequence[ArenaCell]) -> str:
    """Write the options that validation windows chose."""
    chosen = tuned_options(declaration, cells[0]) if cells else {}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
    )


def render(folder: Path, known: Summaries) -> str:
    """Return the text of docs/results.md: the tables in `folder` by part, then those of the papers."""
    return HEAD + "".join(f"\n{part}" for part in (*_parts(folder, known), HEAD_OF_PAPERS, *_papers()))


def _parts(folder: Path, known: Summaries) -> Iterator[str]:
    tables = _tables(folder)
    for part, heading in PARTS.items():
        if shown := [(name, table) for name, table in tables if table.part == part]:
            yield f"## {heading}\n"
            yield from (text for name, table in shown for text in _section(name, table, known))


def _papers() -> Iterator[str]:
    """Yield each paper's tables and figures."""
    return ("\n".join(markdown(paper)) + "\n" for _, paper in all_papers())


def render_figures(folder: Path, known: Summaries) -> dict[str, str]:
    """Return by file name the figures of ranks, of tables that have all their runs of three data sets or more."""
    ranked = {name: _ranking(table, rows(table, known)) for name, table in _tables(folder)}
    return {
        f"{name}-ranks.svg": rank_figure(found.ranks, found.critical_difference, found.datasets)
        for name, found in ranked.items()
        if found is not None
    }


def render_measures(folder: Path, known: Summaries) -> str:
    """Return the text of measures.csv: of every row that has a run, its difference and the means of all measures."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "data", "arm", "tuned", "seeds", *COMPARISON, *MEASURES])
    for name, declaration in _tables(folder):
        found = rows(declaration, known)
        compared = {
            data: _differences(declaration, [row for row in found if row.data == data]) for data in declaration.sets
        }
        for row in found:
            if row.found:
                difference = compared[row.data].get(row.arm)
                cells = [declaration.compared, *difference.cells()] if difference else [""] * len(COMPARISON)
                start = [name, row.data, row.arm, row.tuned, len(row.found), *cells]
                writer.writerow([*start, *map(row.mean, MEASURES)])
    return out.getvalue()


def _tables(folder: Path) -> list[tuple[str, Declaration]]:
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise SettingsError(f"{folder} holds no declaration (*.toml); run this from the root of a checkout")
    return [(path.stem, read_declaration(path)) for path in paths]


def _section(name: str, declaration: Declaration, known: Summaries) -> Iterator[str]:
    found = rows(declaration, known)
    yield f"### {declaration.title}\n"
    for paragraph in (declaration.asks, *filter(None, (declaration.reads or "").split("\n\n"))):
        yield _wrapped(paragraph) + "\n"
    if any(row.values(declaration.compared) for row in found):
        yield "\n".join(_overview(declaration, found)) + "\n"
    ranking = _ranking(declaration, found)
    made = _made(name, declaration, found)
    yield _wrapped(f"{made} {_in_words(ranking)}" if ranking else made) + "\n"
    if ranking:
        yield f"![Average ranks over data sets]({FIGURES.name}/{name}-ranks.svg)\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), MAX_LINE, break_long_words=False, break_on_hyphens=False)


def _overview(declaration: Declaration, found: Sequence[Row]) -> Iterator[str]:
    """Make a table of arms by data sets, with the measure that the arms are compared by."""
    by_set = {data: [row for row in found if row.data == data] for data in declaration.sets}
    shown = {
        data: _differences(declaration, group)
        for data, group in by_set.items()
        if any(row.values(declaration.compared) for row in group)
    }
    compared = MEASURES[declaration.compared].heading
    yield _line([compared, *shown])
    yield _line(["---"] * (1 + len(shown)))
    for name, arm in declaration.arms.items():
        arm_rows = [next(row for row in by_set[data] if row.arm == name) for data in shown]
        if any(row.values(declaration.compared) for row in arm_rows):
            cells = [_compared(declaration, row, shown[row.data].get(name)) for row in arm_rows]
            yield _line([arm.label or name, *cells])


def _compared(declaration: Declaration, row: Row, difference: BaselineDifference | None) -> str:
    if not row.found:
        return NOTHING
    text = _value(row, declaration.compared)
    return text + (f" ({difference.short()})" if difference else "") + _seeds(declaration, row)


def _seeds(declaration: Declaration, row: Row) -> str:
    partly = len(row.found) < len(declaration.seeds)
    return f" ({len(row.found)} of {len(declaration.seeds)} seeds)" if partly else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(row: Row, measure: str) -> str:
    values = list(row.values(measure).values())
    return _shown(row, measure, float(np.mean(values))) if values else NOTHING


def _shown(row: Row, measure: str, value: float) -> str:
    if not MEASURES[measure].is_score:
        is_tiny = 0 < value < 0.05  # which one decimal would show as none
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}" if is_tiny else f"{value:.1f}"
    metric = _metric(row)
    return f"{value * metric.factor:.1f}" if metric.is_share else f"{value:.3g}"


def _metric(row: Row) -> Metric:
    return metric_of(next(iter(row.found.values())).metric)


def _differences(declaration: Declaration, group: Sequence[Row]) -> dict[str, BaselineDifference]:
    """Compare each arm with the baseline, seed by seed; arms that share no seed with it are left out."""
    base = next(row for row in group if row.arm == declaration.baseline)
    paired = {row.arm: _paired(row, base, declaration.compared) for row in group if row is not base}
    intervals = {arm: (values, interval(values)) for arm, values in paired.items() if len(values)}
    tested = {arm: p for arm, (_, (*_, p)) in intervals.items() if p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        arm: BaselineDifference(float(values.mean()), low, high, corrected.get(arm))
        for arm, (values, (low, high, _)) in intervals.items()
    }


def _made(name: str, declaration: Declaration, found: Sequence[Row]) -> str:
    runs = [summary for row in found for summary in row.found.values()]
    planned = len(declaration.seeds) * len(found)
    if not runs:
        return f"*No run of this table is there yet: `python -m sim arena run {name}`.*"
    dates = sorted({run.date for run in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    empty = sum(not row.found for row in found)
    missing = "" if len(runs) == planned else f" of {planned}; means are over the seeds that are there"
    missing += f", and {empty} of {len(found)} rows have none" if empty else ""
    seeds = len(declaration.seeds)
    metric = MEASURES[declaration.compared].metric
    scored = ", ".join(sorted({metric_of(metric or run.metric).label for run in runs}))
    return f"`{name}`: {scored}; {len(runs)} runs{missing}; {seeds} seed{'s' * (seeds > 1)}, {when}."


def _ranking(declaration: Declaration, found: Sequence[Row]) -> Ranking | None:
    """Rank the arms that have this score over data sets, by their labels, where there are three and all have runs.

    Three different ones: the same recordings divided or labelled otherwise are not another draw of what data there are.
    """
    are_three = len({options.get("data", name) for name, options in declaration.sets.items()}) >= 3
    if not are_three or not all(row.found for row in found):
        return None
    scores = {
        arm.label or name: [
            float(np.mean(values)) for row in found if row.arm == name if (values := _listed(row, declaration))
        ]
        for name, arm in declaration.arms.items()
    }
    scored = {label: by_set for label, by_set in scores.items() if by_set}
    if not scored or any(len(by_set) < len(declaration.sets) for by_set in scored.values()):
        return None
    return rank_over_datasets(scored)


def _in_words(ranking: Ranking) -> str:
    return (
        f"Average ranks over {ranking.datasets} data sets: Friedman p {ranking.p:.2g}, critical difference "
        f"{ranking.critical_difference:.1f}."
    )


def _listed(row: Row, declaration: Declaration) -> list[float]:
    return list(row.values(declaration.compared).values())


def render_marks(text: str, folder: Path, known: Summaries) -> str:
    """Write the numbers between the marks of a document anew.

    Raises:
        SettingsError: for a mark that names no table, set, arm or measure, or a cell without a summary.
    """
    return MARK.sub(lambda found: f"<!--={found['what']}-->{_marked(found['what'], folder, known)}<!--/-->", text)


def _marked(what: str, folder: Path, known: Summaries) -> str:
    parts = what.split("/")
    if len(parts) != 4:
        raise SettingsError(f"the mark {what!r}: expected TABLE/SET/ARM/MEASURE, or TABLE/SET/ARM/MEASURE-OTHER")
    name, data, arm, measured = parts
    measure, _, other = measured.partition("-")
    declaration = read_declaration(folder / f"{name}.toml")
    arms = declaration.arms
    if data not in declaration.sets or arm not in arms or measure not in MEASURES or (other and other not in arms):
        raise SettingsError(f"the mark {what!r}: {name} has no such set, arm or measure")
    row = _row(declaration, data, arm, known)
    text = _difference(row, _row(declaration, data, other, known), measure) if other else _value(row, measure)
    if text == NOTHING:
        raise SettingsError(f"the mark {what!r}: no summary backs it; run `python -m sim arena run {name}`")
    return text


def _difference(row: Row, other: Row, measure: str) -> str:
    """Write the mean of an arm's differences to another, seed by seed, and its interval."""
    common = _paired(row, other, measure)
    if not len(common):
        return NOTHING
    low, high, _ = interval(common)
    return f"{common.mean():+.1f}" + ("" if low is None or high is None else f" [{low:+.1f}, {high:+.1f}]")


def _paired(row: Row, other: Row, measure: str) -> npt.NDArray[np.float64]:
    """Return an arm's differences to another of the seeds that both have, in points."""
    own, theirs = row.values(measure), other.values(measure)
    common = [own[seed] - theirs[seed] for seed in sorted(own.keys() & theirs.keys())]
    return np.array(common) * (_metric(row).factor if common else 1)
