"""Print the columns of a comparison that results.md shows: python docs/results_tables.py DIR/comparison.md …"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SCORES = ("method", "model", "pers. F1", "worst 10 % F1", "gen. F1", "global F1", "pers. acc.", "up", "seeds")
THREE_ROUNDS = ("method", "model", "round chosen", "round", "pers. F1", "worst 10 % F1", "gen. F1", "global F1")
TESTS = ("method", "pers. F1", "gen. F1", "seeds")


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield every Markdown table as rows of cells, without the line under its heading."""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            yield [rows[0], *rows[2:]]
            rows = []


def reduced(table: list[list[str]]) -> str:
    """Keep the columns that results.md shows, and plain text where Markdown needs no escape."""
    wanted = TESTS if "baseline" in table[0] else THREE_ROUNDS if "round chosen" in table[0] else SCORES
    places = [table[0].index(name) for name in wanted if name in table[0]]
    lines = [[re.sub(r"\\([\[<_*])", r"\1", row[place]) for place in places] for row in table]
    lines.insert(1, ["---"] * len(places))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


for path in sys.argv[1:]:
    print("\n\n".join(map(reduced, tables(Path(path).read_text()))), end="\n\n")
