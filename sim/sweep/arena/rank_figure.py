"""Average ranks over data sets as an SVG file of text, the same bytes on every machine.

After J. Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, section 3.2.2: each
arm has a bar of one critical difference (Nemenyi, α = 0.05) around its rank, and two arms differ where their bars do
not touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

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
