"""Comparisons: means and stds by hand, ranks against the paper's table, and what is refused or warned of."""

from __future__ import annotations

import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from federation.tasks.classification import Classification
from gaitway.terminal import Console
from sim.errors import RunDirectoryError, SettingsError
from sim.reports.comparison.compare import compare, page_of
from sim.reports.comparison.groups import compare_runs
from sim.reports.comparison.records import Comparison, Row, columns_of
from sim.reports.comparison.tables import print_comparison
from sim.reports.page import markdown
from sim.results.run_directory import RunDirectory
from sim.scores.records import Selection
from tests.sim.example_run import plain, spread, write_run

pytestmark = pytest.mark.ci

# Ek et al. 2024, table 1, HHAR: personalization with its std, generalization, global (macro-F1, %).
HHAR = {
    "local": (93.84, 7.14, 33.75, None),
    "fedavg": (96.88, 3.46, 75.85, 86.47),
    "fedper": (95.89, 4.68, 52.32, None),
    "fedprox": (97.35, 2.67, 74.97, 86.87),
    "moon": (97.16, 3.63, 75.44, 88.03),
    "fedproto": (92.51, 9.92, 41.66, None),
    "fedpac": (97.58, 2.58, 73.05, None),
    "fedali": (98.15, 1.75, 81.84, 90.68),
}


def compared(paths: list[Path]) -> Comparison:
    """A comparison of which nothing is written, because drawing takes seconds."""
    return compare_runs([RunDirectory(path) for path in paths])


def row_of(comparison: Comparison, label: str) -> Row:
    (row,) = (row for group in comparison.groups for row in group.rows if row.label == label)
    return row


@pytest.fixture
def table_1(tmp_path: Path) -> list[Path]:
    return [
        write_run(
            tmp_path / method,
            method=method,
            model="hart_alp" if method == "fedali" else "hart",
            personalization=own / 100,
            std=std / 100,
            generalization=union / 100,
            global_score=None if server is None else server / 100,
        )
        for method, (own, std, union, server) in HHAR.items()
    ]


def test_ranks_are_those_of_the_papers_table(table_1: list[Path], tmp_path: Path) -> None:
    comparison = compared(table_1)
    (group,) = comparison.groups
    ranked = {
        column: {rank: row.label for row in group.rows for rank in (1, 2) if row.ranks[column] == rank}
        for column in columns_of(Classification.metric_kinds)
    }
    assert ranked["personalization.macro_f1"] == {1: "fedali", 2: "fedpac"}
    assert ranked["generalization.macro_f1"] == {1: "fedali", 2: "fedavg"}
    assert ranked["global.macro_f1"] == {1: "fedali", 2: "moon"}
    assert group.refused == ()
    (alone,) = group.warnings
    assert "a single seed is no evidence about a method" in alone


def test_markdown_and_html_mark_the_same_cells(table_1: list[Path], tmp_path: Path) -> None:
    compare(table_1, tmp_path / "out")
    text = (tmp_path / "out/comparison.md").read_text()
    first = text.split("Against the baseline")[0]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in first.splitlines() if line.startswith("| ")}
    assert re.search(r"\*\*98\.15 ± 1\.75\*\* \| \S+ \| \*\*81\.84 ± 1\.75\*\* \| \*\*90\.68\*\*", rows["fedali"])
    assert re.search(r"<u>97\.58 ± 2\.58</u> \| \S+ \| 73\.05 ± 2\.58 \| –", rows["fedpac"])
    assert len({line.count(" | ") for line in rows.values()}) == 1
    html = (tmp_path / "out/comparison.html").read_text()
    assert "<b>98.15 ± 1.75</b>" in html
    assert "<u>97.58 ± 2.58</u>" in html
    assert "data:image/png;base64," in html
    assert "http" not in html.replace("http-equiv", "")


def test_seeds_become_one_row(tmp_path: Path) -> None:
    own, union, server = (0.90, 0.93, 0.96), (0.5, 0.5, 0.5), (0.7, 0.8, 0.6)
    parts = enumerate(zip(own, union, server, strict=True))
    paths = [
        write_run(
            tmp_path / str(seed),
            seed=seed,
            personalization=a,
            generalization=b,
            global_score=c,
            std=0.02 * (seed + 1),
        )
        for seed, (a, b, c) in parts
    ]
    row = row_of(compared(paths), "fedavg")
    assert row.seeds == (0, 1, 2)
    personalization, global_ = row.scores["personalization.macro_f1"], row.scores["global.macro_f1"]
    assert personalization is not None
    assert global_ is not None
    assert personalization.mean == pytest.approx(0.93)
    assert personalization.clients_std == pytest.approx((0.02 + 0.04 + 0.06) / 3)
    assert personalization.seeds_std == pytest.approx(statistics.stdev(own))  # = 0.03
    assert global_.mean == pytest.approx(0.7)
    assert global_.clients_std is None
    assert global_.seeds_std == pytest.approx(0.1)
    curve = row.curves["personalization"]
    assert curve.rounds == tuple(range(1, 13))
    assert curve.values[-1] == pytest.approx(0.93 * (1 - 0.8**20))


def test_runs_from_a_pretraining_of_their_own_seed_are_one_row(tmp_path: Path) -> None:
    """Paired by seed with those that start from nothing; two files that say no seed stay two rows."""

    paths = []
    for whence, init, score in (("none", None, 0.5), ("own", "mae-{}.safetensors", 0.6), ("one", "mae.st", 0.7)):
        for seed in (0, 1):
            found = init and {"path": f"runs/20/{init.format(seed)}", "sha256": f"{seed}" * 64}
            to, own = tmp_path / f"{whence}-{seed}", score + seed / 100
            paths.append(write_run(to, seed=seed, personalization=own, config={"init": found}))
    (group,) = compared(paths).groups
    assert sorted(row.seeds for row in group.rows) == [(0,), (0, 1), (0, 1), (1,)]
    own = next(row for row in group.rows if "SEED" in row.label)
    assert own.label == "fedavg (init=runs/20/mae-SEED.safetensors)"
    personalization = own.scores["personalization.macro_f1"]
    assert personalization is not None
    assert personalization.mean == pytest.approx(0.605)


def test_json_holds_the_comparison(table_1: list[Path], tmp_path: Path) -> None:
    compare(table_1, tmp_path / "out")
    read = json.loads((tmp_path / "out/comparison.json").read_text())
    assert read["schema"] == 3
    assert read["selection"] == "last"
    row = read["groups"][0]["rows"][-1]
    assert row["label"] == "fedali"
    assert row["scores"]["generalization.macro_f1"]["mean"] == pytest.approx(0.8184)
    assert row["bytes_up"] == 1_780_232
    assert row["seconds"] == pytest.approx(5.6 * 12 + 3)


def test_data_and_families_of_models_stay_apart(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", model="har_cnn"),
        write_run(tmp_path / "b", model="hart"),
        write_run(tmp_path / "c", model="hart_alp", method="fedali"),
        write_run(tmp_path / "d", model="har_cnn", config={"dataset": "ucihar"}),
    ]
    groups = compare(paths, tmp_path / "out").groups
    assert [(g.data, g.model, len(g.rows)) for g in groups] == [
        ("motionsense", "har_cnn", 1),
        ("motionsense", "hart", 2),
        ("ucihar", "har_cnn", 1),
    ]
    assert len(list((tmp_path / "out").glob("curves-*.png"))) == 3


def test_rows_of_one_method_are_told_apart(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / str(mu), method="fedprox", config={"method": {"name": "fedprox", "mu": mu}})
        for mu in (0.01, 0.1)
    ]
    (group,) = compared(paths).groups
    assert [row.label for row in group.rows] == ["fedprox (mu=0.01)", "fedprox (mu=0.1)"]
    assert all(rank == 0 for row in group.rows for rank in row.ranks.values()), "equal scores have no best"


OTHER_EXAMPLES: list[tuple[dict[str, Any], str]] = [
    ({"data": {"split": "random80", "normalization": "federated"}, "split_leaks": True}, "split=random80"),
    ({"labels": ["a", "b", "c", "d", "e", "f"]}, "labels=('a', 'b', 'c', 'd', 'e', 'f')"),
    ({"data": {"pipeline": {"stride": 16}, "normalization": "federated"}}, "stride=16"),
    ({"dataset_options": {"subjects": 3}}, "subjects=3"),
]


@pytest.mark.parametrize(("config", "where"), OTHER_EXAMPLES)
def test_other_test_examples_make_another_table(config: dict[str, Any], where: str, tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", personalization=0.9),
        write_run(tmp_path / "b", method="fedprox", personalization=0.8, config=config),
    ]
    comparison = compared(paths)
    first, second = comparison.groups
    assert (len(first.rows), len(second.rows), second.where) == (1, 1, where)
    assert all(rank == 0 for group in (first, second) for rank in group.rows[0].ranks.values())
    assert not any(row.tests for group in (first, second) for row in group.rows)
    (warning,) = comparison.warnings
    assert "were tested on other examples, so they are not comparable" in warning


def test_another_partition_is_not_ranked(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a"), write_run(tmp_path / "b", method="fedprox", clients=20, personalization=0.8)]
    (group,) = compare(paths, tmp_path / "out").groups
    assert group.refused == ("the clients or their test examples differ between runs of seed 0",)
    assert all(rank == 0 for row in group.rows for rank in row.ranks.values())
    assert not any(row.tests for row in group.rows)
    markdown = (tmp_path / "out/comparison.md").read_text()
    assert "Not comparable" in markdown
    assert "**90.00" not in markdown
    assert "Not comparable" in (tmp_path / "out/comparison.html").read_text()


TASK = {"classes": 6, "epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": 1e-4, "seed": 0}
WARNED: list[tuple[dict[str, Any], str]] = [
    ({"rounds": {"rounds": 50, "clients_per_round": None}}, "rounds.rounds differs: 12 (fedavg); 50 (fedprox)"),
    ({"rounds": {"rounds": 12, "clients_per_round": 5}}, "rounds.clients_per_round differs"),
    ({"training": TASK | {"lr": 0.01}}, "training.lr differs: 0.0001 (fedavg); 0.01 (fedprox)"),
    ({"training": TASK | {"seed": 3}}, "seeds differ: fedavg: 0; fedprox: 3"),
    ({"data": {"normalization": "client"}}, "normalization differs"),
    ({"hardware": "a GPU"}, "seconds come from different hardware"),
]


@pytest.mark.parametrize(("config", "warning"), WARNED)
def test_other_training_is_warned_of(config: dict[str, Any], warning: str, tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", personalization=0.9),
        write_run(tmp_path / "b", method="fedprox", personalization=0.8, config=config),
    ]
    (group,) = compare(paths, tmp_path / "out").groups
    assert group.refused == ()
    assert any(warning in came for came in group.warnings)
    assert warning.split(":")[0] in (tmp_path / "out/comparison.html").read_text()
    assert group.rows[0].ranks["personalization.macro_f1"] == 1


def test_the_leaking_split_is_named(tmp_path: Path) -> None:
    leaks = {"data": {"split": "random80"}, "split_leaks": True}
    (group,) = compared([write_run(tmp_path / "a", config=leaks)]).groups
    assert any(warning.startswith("the split 'random80' leaks") for warning in group.warnings)


def test_unfinished_and_doubled_runs_are_left_out(tmp_path: Path) -> None:
    finished = write_run(tmp_path / "a")
    paths = [
        finished,
        tmp_path / "x" / ".." / "a",
        write_run(tmp_path / "b"),
        write_run(tmp_path / "c", method="fedprox", finished=False),
    ]
    (tmp_path / "x").mkdir()
    comparison = compare(paths, tmp_path / "out")
    assert [row.directories for row in comparison.groups[0].rows] == [(str(tmp_path / "x/../a"),)]
    same, half = comparison.warnings
    assert "same settings and seed" in same
    assert "6 of 12 rounds are done" in half
    assert same in (tmp_path / "out/comparison.html").read_text()


CHOSEN = {"validation": (4, 0.81), "last": (12, 0.72), "best": (9, 0.93)}


def three_rounds(path: Path, **given: Any) -> Path:
    """A run whose three rounds have other scores each."""
    config = {"validation_share": 0.1} if given.pop("validated", True) else None
    write_run(path, config=config, **given)
    summary = json.loads((path / "summary.json").read_text())
    clients = json.loads((path / "client_scores.json").read_text())
    for name, (number, score) in CHOSEN.items():
        if name == "best":
            summary |= {"best_round": number, "personalization": spread(score)}
        elif summary[name]:
            summary[name] |= {"round": number, "personalization": spread(score)}
        for entry in clients.values():
            if name == "best" or entry[name]:
                (entry if name == "best" else entry[name])["personalization"] = plain(score)
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "client_scores.json").write_text(json.dumps(clients))
    return path


@pytest.mark.parametrize(
    ("select", "validated", "wanted"),
    [(None, True, "validation"), (None, False, "last"), ("best", True, "best"), ("last", True, "last")],
)
def test_the_rounds_that_are_compared_are_chosen(
    select: Selection | None, validated: bool, wanted: Selection, tmp_path: Path
) -> None:
    paths = [three_rounds(tmp_path / "a"), three_rounds(tmp_path / "b", method="fedprox", validated=validated)]
    comparison = compare_runs([RunDirectory(path) for path in paths], select=select)
    row, number, score = row_of(comparison, "fedavg"), *CHOSEN[wanted]
    assert comparison.selection == wanted
    assert row.chosen_rounds == (number,)
    for column in ("personalization.macro_f1", "worst.macro_f1"):
        found = row.scores[column]
        assert found is not None
        assert found.mean == pytest.approx(score)
    assert {name: each.rounds[0] for name, each in row.selected.items()} == {n: r for n, (r, _) in CHOSEN.items()}
    assert list(row_of(comparison, "fedprox").selected) == [
        name for name in CHOSEN if validated or name != "validation"
    ]
    text = markdown(page_of(comparison))
    assert {"validation": "on validation", "last": "the last round", "best": "flattered"}[wanted] in text.split(
        "| method"
    )[0]
    assert re.search(r"\| fedavg \| har\\_cnn \| by validation \| 4 \| 81.00 ± 5.00 \|", text)
    assert re.search(r"\| fedavg \| har\\_cnn \| best by test \| 9 \| 93.00 ± 5.00 \|", text)


def test_runs_without_validation_cannot_be_compared_by_it(tmp_path: Path) -> None:
    paths = [three_rounds(tmp_path / "a"), three_rounds(tmp_path / "b", method="fedprox", validated=False)]
    with pytest.raises(RunDirectoryError, match=r"b has no validation scores \(1 of 2 runs have none\); run it with"):
        compare(paths, tmp_path / "out", select="validation")


def test_nothing_finished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="expected at least one finished run"):
        compare([write_run(tmp_path / "a", finished=False)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_from_outside_stay_text(tmp_path: Path) -> None:
    method = "<b>|x"
    compare([write_run(tmp_path / "a", method=method)], tmp_path / "out")
    assert "&lt;b&gt;|x" in (tmp_path / "out/comparison.html").read_text()
    assert "| \\<b>\\|x |" in (tmp_path / "out/comparison.md").read_text()


def test_the_terminal_table_fits_80_columns(table_1: list[Path], tmp_path: Path) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    print_comparison(compared(table_1), console)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for own, std, union, _server in HHAR.values():
        assert f"{own:.2f} ± {std:.2f}" in text
        assert f"{union:.2f} ± {std:.2f}" in text
    assert all(method in text for method in HHAR)


def test_an_unknown_baseline_is_refused(table_1: list[Path], tmp_path: Path) -> None:
    runs = [RunDirectory(path) for path in table_1]
    words = "--baseline 'fedavgg' is neither a method nor a row of these runs; did you mean 'fedavg'?"
    with pytest.raises(SettingsError, match=re.escape(words)):
        compare_runs(runs, "fedavgg")
    assert compare_runs(runs, "local").groups


def test_the_title_names_every_network_of_its_rows(tmp_path: Path) -> None:
    plain, alp = write_run(tmp_path / "a", model="hart"), write_run(tmp_path / "b", model="hart_alp", method="fedali")
    assert [group.title for group in compared([plain, alp]).groups] == ["motionsense · hart, hart_alp"]
    assert [group.title for group in compared([alp]).groups] == ["motionsense · hart_alp"]
