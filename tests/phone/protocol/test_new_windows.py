"""A phone makes its heads again of the same windows as a board: one rule, in two languages and over two kinds of notes.

A board knows its windows by their keys, a phone how many there are and the newest one's number, as the oldest go first.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.machine.state import Agent, has_new_windows
from federation.protocol.messages import Announcement
from tests.edge_agent.machine.test_contributions import device, version
from tests.phone.test_javascript import by_node


def of_a_board(agent: Agent, announced: Announcement, now: range, before: range, *, is_due: bool) -> bool:
    known = {"examples": 0, "judged_global": "a", "unlabelled": frozenset(now), "adapted_to": frozenset(before)}
    return has_new_windows(replace(agent, **known, refresh_at=None if is_due else 1.0), announced)


def of_a_phone(windows: range) -> dict[str, int]:
    return {"count": len(windows), "newest": windows.stop - 1 if windows else 0}


def test_a_phone_and_a_board_make_their_heads_again_of_the_same_windows() -> None:
    """Windows come at the end and go at the beginning; also where nearly all have gone, and at the rule's edges."""
    agent, announced = device().agent, version(2, "b").announcement
    after = announced.plan.publication.send_after_windows
    cases: list[dict[str, Any]] = []
    expected = []
    draw = np.random.default_rng(0)
    for _ in range(400):
        first, count, gone = 1, int(draw.integers(0, 4 * after)), int(draw.integers(0, 2 * after))
        came = int(draw.choice([0, after - 1, after, after + 1, draw.integers(0, 3 * after)]))
        before = range(first, first + count)
        now = range(first + min(gone, count), before.stop + came)
        if not now:
            continue
        is_due = bool(draw.integers(2))
        cases.append({"sendAfter": after, "now": of_a_phone(now), "before": of_a_phone(before), "isDue": is_due})
        expected.append(of_a_board(agent, announced, now, before, is_due=is_due))
    assert 100 < sum(expected) < len(expected) - 100
    found = by_node(Path(__file__).parent / "new_windows_of.mjs", {"cases": cases})["found"]
    assert found == expected
