"""Gravity's direction by activity, compared between clients: who differs is named, and nobody without a majority."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

from har_pipeline.cli import app
from har_pipeline.recording import Categorical, Recording
from har_pipeline.signals.directions import GravityDirections
from tests.har_pipeline.layouts import table, unpacked

G = 9.80665
TURNS = {
    "the other way up": np.diag([-1.0, -1, 1]),
    "all signs": -np.eye(3),
    "one sign": np.diag([1.0, -1, 1]),
    "swapped": np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]]),
}


def pocket(seed: int, count: int = 600) -> np.ndarray:
    """Upright in a pocket, each person's a little otherwise, and moving: specific force (n, 3)."""
    random = np.random.default_rng(seed)
    lean = np.array([0, 1, 0.1]) + random.normal(0, 0.1, 3)
    return G * lean / np.linalg.norm(lean) + random.normal(0, 2, (count, 3))


def seen(clients: dict[str, np.ndarray]) -> GravityDirections:
    directions = GravityDirections()
    for client, values in clients.items():
        for part in np.array_split(values, 3):
            directions.add(Recording(client, "", "walking", "acc", np.arange(len(part)) / 50, part))
            directions.add(Recording(client, "", "walking", "gyro", np.arange(len(part)) / 50, 100 * part))
    return directions


@pytest.mark.parametrize("turn", TURNS)
def test_whoever_differs_from_a_majority_is_named(turn: str) -> None:
    people = {str(number): pocket(number) for number in range(8)}
    assert seen(people).differences() == []
    people["7"] = people["7"] @ TURNS[turn].T
    (found,) = seen(people).differences()
    assert (found.client, found.activities) == ("7", ("walking",))
    own = "+x" if turn == "swapped" else "−y"
    assert f"upwards is {own} in walking where most others have +y" in found.words
    assert ("axes swapped" if turn == "swapped" else "other way up") in found.words


def test_nobody_is_named_without_a_majority_or_among_few() -> None:
    halves = {str(number): pocket(number) * (1 if number % 2 else -1) for number in range(8)}
    assert seen(halves).differences() == []
    assert seen({"a": pocket(0), "b": pocket(1), "c": -pocket(2)}).differences() == []
    kinds = {f"{number}_{kind}": sign * pocket(number) for number in range(4) for kind, sign in (("sp", 1), ("sw", -1))}
    assert seen(kinds).differences() == []  # watches are compared with watches


def test_unlabelled_lost_and_tumbling_samples_say_nothing() -> None:
    directions = seen({str(number): pocket(number) for number in range(4)})
    tumbling = G * np.random.default_rng(0).choice([-1.0, 1.0], (600, 1)) * [0, 1, 0]
    directions.add(Recording("tumbling", "", "walking", "acc", np.arange(600) / 50, tumbling))
    words = Categorical(np.array(["", "walking"]), np.zeros(600, dtype=np.int64))
    directions.add(Recording("unlabelled", "", words, "acc", np.arange(600) / 50, -pocket(1)))
    directions.add(Recording("lost", "", "walking", "acc", np.arange(600) / 50, np.full((600, 3), np.nan)))
    assert directions.differences() == []


def test_describe_and_info_say_who_differs_and_info_how_it_is_declared(tmp_path) -> None:
    files = {}
    columns = ["ms", "acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"]
    for number, (activity, turning) in product(range(6), (("walking", 1.0), ("standing", 0.02))):
        acc = pocket(number) * (-1 if number == 4 else 1)
        rows = [[20 * i, *row, turning * np.sin(i), 0, 0] for i, row in enumerate(acc.round(4).tolist())]
        files[f"p{number}/{activity}.csv"] = table(columns, rows)
    root, toml = unpacked(files, tmp_path / "data"), tmp_path / "data.toml"
    toml.write_text(
        'files = \'(?P<client>p\\d)/(?P<activity>[a-z]+)\\.csv\'\nlabels = ["walking", "standing"]\n'
        'time = { column = "ms", unit = "ms" }\nacceleration = "specific force"\n'
        'acc = { columns = ["acc_x", "acc_y", "acc_z"] }\ngyro = { columns = ["gyro_x", "gyro_y", "gyro_z"] }\n'
    )
    for words in (["describe", root], ["info", "--describe", toml, "--data-root", root]):
        result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
        assert result.exit_code == 0, result.output
        assert "client p4: upwards is −y in standing" in result.output
        assert "where most others have +y" in result.output
        assert result.output.count("upwards is") == 1
    assert "acceleration  specific force: at rest, face up, z is +9.81" in result.output
