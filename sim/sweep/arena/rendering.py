"""Pages and figures of results, and numbers in other documents, from declarations and summaries alone.

Average ranks are an SVG file of text, the same bytes on every machine. After J. Demšar: Statistical Comparisons of
Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2: each arm has a bar of one critical difference
(Nemenyi, α = 0.05) around its rank, and two arms differ where their bars do not touch.

`docs/results.md`,
`conditions.md`, `fedali.md` and `questions.md` have a row for each arm and the measure by which a table compares, and
`docs/measures.csv` has all measures. A cell is the mean over the seeds that have a summary; without one it is a dash,
never a number, and a row without any is left out. Differences to the baseline are paired over seeds: mean, 95 % by
Student's t, and p by Holm over the arms of the same data set (`sim.results.statistics`).
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
HEAD = """# Results on real recordings

After this page you can tell how the methods compare here, and make any of its numbers again. Every number is rendered
from a run's summary in `docs/results/` (plan, commit, hash of the data, seed); `python -m sim arena render` writes this
page, and nobody edits it. Scores are macro-F1 in percent, unless a table says otherwise, of the round that each
client's validation windows chose, as means over seeds; a seed also draws who is new. In parentheses stands the
difference to the table's baseline, which has none itself. Make a table with `python -m sim arena run NAME --data-root
DATA`, one cell with the command that `python -m sim arena cell KEY` prints.

[measures.csv](measures.csv) has all measures of all tables. There `…_last_ten` is the mean of the last ten rounds (with
`--eval-last 10`), `convergence_round` the first within half a point of the best mean accuracy of own models,
`prototype_distance` Σ n_k[c]/N[c] · ‖p_k[c] − P[c]‖²/D over clients k and classes c, and `numbers_k` thousands of
numbers that all clients send in a round.

On another processor a network's single run may come out otherwise: by a point, or by six where few new users are scored
(two runs on UCI HAR, 2026-11-27). Means over seeds are what a table says.
"""
HEAD_OF_CONDITIONS = """# Results under harder conditions

After this page you can tell what is left of a federation's scores where clients are hostile or unlike, phones carried
otherwise, uploads short or noisy. It is rendered as [results.md](results.md) is, which says how to read it.
"""
HEAD_OF_FEDALI = """# Results of FedAli

After this page you can tell how much of FedAli's scores is its network's, its prototype layer's and its clustering's.
It is rendered as [results.md](results.md) is, which says how to read it.
"""
HEAD_OF_QUESTIONS = """# Results of the other papers' questions

After this page you can tell what came of the other papers' methods in their own settings, or in settings that take
their claims apart, and how our scores stand beside those of others. It is rendered as [results.md](results.md) is,
which says how to read it.
"""
HEADS = {"results": HEAD, "conditions": HEAD_OF_CONDITIONS, "fedali": HEAD_OF_FEDALI, "questions": HEAD_OF_QUESTIONS}
"""By the page, docs/PAGE.md."""
HEAD_OF_PAPERS = """# The papers, table by table

After this page you can make the tables and figures of the papers again, and tell how ours stand next to
theirs. `python -m sim presets` prints the same, and `python -m sim presets tan2022` one paper's. Scores are percent.
[questions.md](questions.md) and [fedali.md](fedali.md) have the experiments that take the papers' claims apart.
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


def render(folder: Path, known: Summaries, page: str = "results") -> str:
    """Return the text of docs/PAGE.md, of all tables in `folder` that it shows."""
    shown = [(name, table) for name, table in _tables(folder) if table.page == page]
    return HEADS[page] + "".join(f"\n{part}" for name, table in shown for part in _section(name, table, known))


def render_papers() -> str:
    """Return the text of papers.md: each paper's tables and figures."""
    return HEAD_OF_PAPERS + "".join("\n" + "\n".join(markdown(paper)) + "\n" for _, paper in all_papers())


def render_figures(folder: Path, known: Summaries) -> dict[str, str]:
    """Return by file name the figures of ranks, of tables that have all their runs of three data sets or more."""
    ranked = {name: _ranking(table, rows(table, known)) for name, table in _tables(folder)}
    return {
        f"{name}-ranks.svg": rank_figure(found.ranks, found.critical_difference, found.datasets)
        for name, found in ranked.items()
        if found is not None
    }


def render_measures(folder: Path, known: Summaries) -> str:
    """Return the text of measures.csv: every measure of every row that has a run, as a mean over its seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "data", "arm", "tuned", "seeds", *MEASURES])
    for name, declaration in _tables(folder):
        for row in rows(declaration, known):
            if row.found:
                writer.writerow([name, row.data, row.arm, row.tuned, len(row.found), *map(row.mean, MEASURES)])
    return out.getvalue()


def _tables(folder: Path) -> list[tuple[str, Declaration]]:
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise SettingsError(f"{folder} holds no declaration (*.toml); run this from the root of a checkout")
    return [(path.stem, read_declaration(path)) for path in paths]


def _section(name: str, declaration: Declaration, known: Summaries) -> Iterator[str]:
    found = rows(declaration, known)
    yield f"## {declaration.title}\n"
    for paragraph in (declaration.asks, *filter(None, (declaration.reads or "").split("\n\n"))):
        yield _wrapped(paragraph) + "\n"
    if any(row.values(declaration.compared) for row in found):
        yield "\n".join(_overview(declaration, found)) + "\n"
    yield _wrapped(_made(name, declaration, found)) + "\n"
    if ranking := _ranking(declaration, found):
        yield _wrapped(_in_words(declaration, ranking)) + "\n"
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
        if any(row.found for row in arm_rows):
            cells = [_compared(declaration, row, shown[row.data][name]) for row in arm_rows]
            yield _line([arm.label or name, *cells])


def _compared(declaration: Declaration, row: Row, difference: str) -> str:
    if not row.found:
        return NOTHING
    text = _value(row, declaration.compared)
    return text + (f" ({difference})" if difference != NOTHING else "") + _seeds(declaration, row)


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


def _differences(declaration: Declaration, group: Sequence[Row]) -> dict[str, str]:
    """Compare each arm with the baseline, seed by seed."""
    base = next(row for row in group if row.arm == declaration.baseline)
    shown, tests = dict[str, str](), dict[str, float]()
    for row in group:
        shown[row.arm] = NOTHING if row is base else _difference(row, base, declaration.compared)
        if shown[row.arm] != NOTHING:
            *_, p = interval(_paired(row, base, declaration.compared))
            tests |= {row.arm: p} if p is not None else {}
    for arm, p in zip(tests, holm(list(tests.values())), strict=True):
        shown[arm] += f", p {p:.2g}" if p >= 0.001 else ", p < 0.001"
    return shown


def _made(name: str, declaration: Declaration, found: Sequence[Row]) -> str:
    runs = [summary for row in found for summary in row.found.values()]
    planned = len(declaration.seeds) * len(found)
    if not runs:
        return f"*No run of this table is there yet: `python -m sim arena run {name}`.*"
    dates, commits = sorted({run.date for run in runs}), sorted({run.commit for run in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    hardware = ", ".join(sorted({run.hardware for run in runs}))
    empty = sum(not row.found for row in found)
    missing = "" if len(runs) == planned else f" of {planned}; means are over the seeds that are there"
    missing += f", and {empty} of {len(found)} rows have none" if empty else ""
    seeds = len(declaration.seeds)
    metric = MEASURES[declaration.compared].metric
    scored = ", ".join(sorted({metric_of(metric or run.metric).label for run in runs}))
    return (
        f"`{name}`: {scored}; {len(runs)} runs{missing}; {seeds} seed{'s' * (seeds > 1)}, {when}, {hardware}, commits "
        f"{', '.join(commits)}."
    )


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


def _in_words(declaration: Declaration, ranking: Ranking) -> str:
    ordered = sorted(ranking.ranks.items(), key=lambda pair: pair[1])
    listed = ", ".join(f"{label} {rank:.1f}" for label, rank in ordered)
    return (
        f"Average ranks over {ranking.datasets} data sets ({MEASURES[declaration.compared].heading}): {listed}; "
        f"Friedman p {ranking.p:.2g}, critical difference {ranking.critical_difference:.1f}."
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
