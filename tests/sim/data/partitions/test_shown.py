"""The table and the image of a partition: they show its counts, and nothing is cut or covered."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from gaitway.terminal import Console
from sim.data.partitions import Dirichlet, Equal, NWay, Partition, Pool, Shards, class_counts
from sim.data.partitions.table import partition_table
from sim.reports.figures.partition import class_figure, draw_partition, partition_figure
from tests.sim.reports.test_plots import overlapping


def pool(classes: int, examples: int = 30_000) -> Pool:
    random = np.random.default_rng(0)
    return Pool(random.integers(0, classes, examples), classes, random.random(examples) < 0.75)


def names(classes: int) -> list[str]:
    return [f"class {c}" for c in range(classes)] if classes > 10 else list("0123456789"[:classes])


def printed(partition: Partition, classes: int, width: int = 80) -> list[str]:
    given = pool(classes)
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(partition_table(partition.divide(given, 0), given.y, names(classes)))
    return captured.get().splitlines()


def test_the_table_has_every_client_and_every_count() -> None:
    given, partition = pool(10), NWay(clients=20, shots=50, test_shots=20)
    shares = partition.divide(given, 0)
    counts = class_counts(shares, given.y, 10, "train")
    rows = {line.split()[0]: line.split()[1:] for line in printed(partition, 10) if line.startswith(" client-")}
    assert list(rows) == list(shares)
    for row, (name, share) in zip(counts, shares.items(), strict=True):
        wanted = [len(share.train), len(share.test), np.count_nonzero(row), *row]
        assert [0 if cell == "·" else int(cell) for cell in rows[name]] == wanted


def test_the_table_of_a_thousand_clients_is_short_and_fits_80_columns() -> None:
    lines = printed(Shards(clients=1000, minimum=1), 10)
    assert len(lines) < 16
    assert lines[0].startswith("1000 clients; training examples 23.9 ±")  # 0.8 · 30,000 / 1,000, rounded a client
    sizes = [
        int(line.split()[-13]) for line in lines if line.split()[:1] and line.split()[0] in ("smallest", "largest")
    ]
    assert sizes == sorted(sizes)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_the_table_of_a_hundred_classes_names_the_largest() -> None:
    lines = printed(Dirichlet(clients=5), 100, width=100)
    assert any("largest classes" in line for line in lines)
    assert sum("class " in line for line in lines) == 5


@pytest.mark.ci
@pytest.mark.parametrize(
    ("partition", "classes"),
    [
        (Dirichlet(clients=20), 10),
        (Dirichlet(clients=50), 10),
        (Equal(clients=5), 26),
        (Dirichlet(clients=20), 100),
        (Shards(clients=1000, minimum=1), 10),
        (Equal(clients=1), 2),
    ],
    ids=repr,
)
def test_nothing_covers_anything(partition: Partition, classes: int) -> None:
    given = pool(classes)
    shares = partition.divide(given, 0)
    parts = [class_counts(shares, given.y, classes, part) for part in ("train", "test")]
    assert overlapping(partition_figure(list(shares), *parts, names(classes))) == []


def test_the_image_is_a_png_where_it_was_asked_for(tmp_path: Path) -> None:
    given = pool(4)
    wanted = tmp_path / "drawn" / "partition.png"
    assert draw_partition(wanted, Equal(clients=5).divide(given, 0), given.y, names(4)) == wanted
    assert wanted.read_bytes().startswith(b"\x89PNG")


def test_bubbles_have_the_area_of_their_counts() -> None:
    train = np.array([[400, 0], [100, 200]])
    figure = partition_figure(["client-000", "client-001"], train, train // 4, ["a", "b"])
    bubbles = figure.axes[1].collections[0]
    assert isinstance(bubbles, PathCollection)
    found = {tuple(at): area for at, area in zip(bubbles.get_offsets().tolist(), bubbles.get_sizes(), strict=True)}
    assert found == pytest.approx({(0, 0): 400, (1, 0): 100, (1, 1): 200})


def test_many_clients_stand_with_their_like() -> None:
    train = np.zeros((60, 3), np.int64)
    train[np.arange(60), np.arange(60) % 3] = 1 + np.arange(60)
    image = partition_figure([f"client-{k:03d}" for k in range(60)], train, train, list("abc")).axes[1].images[0]
    shown = np.ma.filled(image.get_array(), 0)
    assert np.flatnonzero(shown[0]).tolist() == list(range(20))
    assert shown[0][:20].tolist() == list(range(58, 0, -3))


def test_the_classes_of_clients_are_counted() -> None:
    """Three clients: one has all of three classes, one has two, one has a single one."""
    counts = np.array([[0, 4, 4, 2], [0, 5, 0, 5], [0, 0, 0, 80]])
    holding, number, sizes, mixes = class_figure(counts, ["nobody's", *"abc"]).axes
    assert [bar.get_height() for bar in holding.patches] == [2, 1, 3]
    assert [bar.get_height() for bar in number.patches] == [1, 1, 1]
    assert sizes.get_lines()[0].get_ydata().tolist() == [80, 10, 10]
    widths = np.array([bar.get_width() for bar in mixes.patches]).reshape(3, 3).T
    np.testing.assert_allclose(widths, [[0, 0, 1], [0.4, 0.4, 0.2], [0.5, 0, 0.5]])


@pytest.mark.parametrize(("clients", "classes"), [(2, 2), (100, 20), (1000, 10)])
def test_no_label_of_the_classes_covers_another(clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 3, (clients, classes)) + 1
    assert overlapping(class_figure(counts, names(classes))) == []
