"""Whatever the layout, a first description is right, or says that it is unsure: never sure and wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from har_pipeline.description.guess.draft import draft
from tests.har_pipeline.description.strange import strange_layout, verdicts

MIN_RIGHT = {"rate": 0.75, "acc": 0.9, "gyro": 0.9, "client": 0.9, "activity": 0.9}
"""The share of layouts of which each is guessed right; a tenth have no time, and all others say that they guess."""


@pytest.mark.parametrize(
    "seeds",
    [
        range(2),
        pytest.param(range(2, 24), marks=pytest.mark.ci),
        pytest.param(range(24, 400), marks=pytest.mark.slow),
    ],
)
def test_a_guess_is_right_or_says_that_it_is_unsure(tmp_path, seeds):
    right: Counter[str] = Counter()
    for seed in seeds:
        folder = tmp_path / str(seed)
        made = strange_layout(folder, seed)
        found = draft(folder)
        for aspect, (is_right, is_sure) in verdicts(found, made, folder).items():
            assert is_right or not is_sure, (aspect, made.choices, found.toml())
            right[aspect] += is_right
    assert all(right[aspect] >= least * len(seeds) - 1 for aspect, least in MIN_RIGHT.items()), right


def rows_of(times: Sequence[object], size: float = 9.81, *, gravity: bool = True) -> list[str]:
    """Somebody who sits, walks and sits, as rows of a time and an acceleration."""
    t, random = np.arange(len(times)) / 50, np.random.default_rng(0)
    moving = (np.arange(len(times)) // (len(times) // 3) == 1)[:, None]
    acc = 3 * moving * np.stack([np.sin(11 * t), np.sin(12 * t + 1), np.sin(13 * t)], axis=1)
    acc = (acc + random.normal(0, 0.02, acc.shape) + np.array([0, 0, 9.81 * gravity])) * size / 9.81
    return [f"{time},{x:.4f},{y:.4f},{z:.4f}" for time, (x, y, z) in zip(times, acc, strict=True)]


@pytest.mark.parametrize(
    ("header", "times", "expected"),
    [
        # since the phone started, in ms: as seconds these would be in 1976, and 0.025 Hz
        ("timestamp", [200_000_000 + 40 * i for i in range(600)], {"column": "timestamp", "unit": "ms"}),
        ("Timestamp in ms", [20 * i for i in range(600)], {"column": "Timestamp in ms", "unit": "ms"}),
        ("time (min)", [i / 3000 for i in range(600)], {"column": "time (min)", "unit": 60.0}),
        ("time", [i / 2 for i in range(600)], None),  # 2 or 2000 rows a second
        ("time (s)", [40 * i for i in range(600)], {"column": "time (s)", "unit": "ms"}),  # the header is wrong
        ("sample", list(range(600)), {"column": "sample", "unit": 0.02}),  # 50 a second, unless told otherwise
    ],
)
def test_no_impossible_rate_is_proposed_and_headers_count(tmp_path, header, times, expected):
    (tmp_path / "walking.csv").write_text("\n".join([f"{header},ax,ay,az", *rows_of(times), ""]))
    found = draft(tmp_path)
    assert found.to_json().get("time") == expected
    if expected is None:
        assert not found.guesses["rate_hz"].sure
        assert "check the rows per second" in found.toml()
    else:
        assert found.guesses["time"].sure == (header not in ("time (s)", "sample"))


@pytest.mark.parametrize("size", [9.81, 3.0, 1.0])
def test_acceleration_without_gravity_is_not_taken_for_g(tmp_path, size):
    times = [i / 50 for i in range(1500)]
    (tmp_path / "walking.csv").write_text("\n".join(["t,ax,ay,az", *rows_of(times, size, gravity=False), ""]))
    guess = draft(tmp_path).guesses["acc"]
    assert not guess.sure
    assert "they lack gravity" in guess.why


def test_ids_of_persons_are_no_labels_where_something_else_varies_within_them(tmp_path):
    """`class` has the person here: one word in each folder, while the files' names vary within."""
    for who in ("K07", "K12", "K31"):
        for at, what in enumerate(("mola", "kuna", "tepi")):
            random = np.random.default_rng(at)
            acc = random.normal(0, (0.05, 2, 6)[at], (600, 3)) + np.array([0, 0, 9.81])
            lines = [f"{i / 50:.2f},{x:.3f},{y:.3f},{z:.3f},{who}" for i, (x, y, z) in enumerate(acc)]
            path = tmp_path / who / f"{what}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(["t,ax,ay,az,code", *lines, ""]))
    found = draft(tmp_path)
    assert found.guesses["labels"].value == ["kuna", "mola", "tepi"]
