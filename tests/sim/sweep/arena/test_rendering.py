"""What a reader sees: means of summaries, dashes where there is none, differences that a hand can check."""

from __future__ import annotations

import csv
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from sim.errors import RunDirectoryError, SettingsError
from sim.sweep.arena.cells import open_cells, read_declaration
from sim.sweep.arena.measures import CellSummary, read_summaries, write_summary
from sim.sweep.arena.rendering import AXIS, rank_figure, render, render_figures, render_marks, render_measures
from sim.sweep.arena.running import differences, draw_cell
from tests.repository.imports import REPOSITORY
from tests.sim.sweep.arena.test_cells import summary

TABLE = """
title = "Two methods"
asks = "Which is better?"
seeds = [0, 1, 2]
baseline = "fedavg"
[sets.motionsense]
[arms.fedavg]
method = "fedavg"
[arms.local]
method = "local"
label = "each alone"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "two.toml").write_text(TABLE)
    return tmp_path


def known(folder: Path, **scores: list[float | None]) -> dict[str, CellSummary]:
    """Summaries of the arms' seeds with these own scores; None: that run is not done."""
    found = {}
    for cell in open_cells(read_declaration(folder / "two.toml"), {}):
        own = scores[cell.arm][cell.seed]
        if own is not None:
            found[cell.key] = summary().model_copy(update={"measures": {"own": own, "upload_mb": 1.25}})
    return found


def test_differences_are_paired_over_seeds(folder: Path) -> None:
    runs = known(folder, fedavg=[0.80, 0.90, 0.85], local=[0.82, 0.92, 0.90])
    # +2, +2, +5 points: mean 3, s = √3, t(0.975, 2) = 4.303: 3 ± 4.303 · √3 / √3; p of t = 3 with 2 degrees is 0.0955
    first = render(folder, runs)
    assert "| own later windows | motionsense |" in first
    assert "| fedavg | 85.0 |" in first
    assert "| each alone | 88.0 (+3.0) |" in first
    row = next(row for row in measures_of(folder, runs) if row["arm"] == "local")
    found = {name: row[name] for name in ("compared", "difference", "ci_low", "ci_high", "p")}
    assert found == {"compared": "own", "difference": "3", "ci_low": "-1.3", "ci_high": "7.3", "p": "0.0955"}


def test_a_significant_difference_has_a_star(folder: Path) -> None:
    runs = known(folder, fedavg=[0.80, 0.90, 0.85], local=[0.90, 1.00, 0.951])
    assert "| each alone | 95.0 (+10.0*) |" in render(folder, runs)


def test_a_table_of_accuracies_is_not_called_one_of_macro_f1(folder: Path) -> None:
    runs = known(folder, fedavg=[0.8, 0.8, 0.8], local=[None, None, None])
    assert "`two`: macro-F1; 3 runs" in render(folder, runs)
    (folder / "two.toml").write_text(
        TABLE.replace('baseline = "fedavg"', 'baseline = "fedavg"\ncompared = "own_accuracy"')
    )
    assert "`two`: accuracy; 3 runs" in render(folder, runs)


def measures_of(folder: Path, runs: dict[str, CellSummary]) -> list[dict[str, str]]:
    """Return the rows of measures.csv."""
    return list(csv.DictReader(io.StringIO(render_measures(folder, runs))))


def test_every_measure_is_a_mean_over_the_seeds_that_have_it(folder: Path) -> None:
    runs = known(folder, fedavg=[0.80, 0.90, 0.85], local=[0.8, None, None])
    fedavg, local = measures_of(folder, runs)
    assert [fedavg[name] for name in ("table", "data", "arm", "seeds")] == ["two", "motionsense", "fedavg", "3"]
    assert (float(fedavg["own"]), float(fedavg["upload_mb"]), fedavg["server"]) == (0.85, 1.25, "")
    assert (local["arm"], local["seeds"], float(local["own"])) == ("local", "1", 0.8)


def test_a_set_whose_runs_lack_the_compared_measure_has_no_column(folder: Path) -> None:
    (folder / "two.toml").write_text(TABLE + "[sets.ucihar]\n")
    runs = known(folder, fedavg=[0.8] * 3, local=[0.7] * 3)
    ucihar = {cell.key for cell in open_cells(read_declaration(folder / "two.toml"), {}) if cell.group == "ucihar"}
    less = {
        key: each.model_copy(update={"measures": {"upload_mb": 1.25}}) if key in ucihar else each
        for key, each in runs.items()
    }
    assert "| own later windows | motionsense | ucihar |" in render(folder, runs)
    assert "| own later windows | motionsense |\n" in render(folder, less)
    (own,) = {row["own"] for row in measures_of(folder, less) if row["data"] == "ucihar"}
    assert own == ""


def test_a_row_without_a_summary_is_left_out_and_said(folder: Path) -> None:
    runs = known(folder, fedavg=[0.8, None, None], local=[None, None, None])
    text = render(folder, runs)
    assert [row["arm"] for row in measures_of(folder, runs)] == ["fedavg"]
    assert "| fedavg | 80.0 (1 of 3 seeds) |" in text
    assert "each alone |" not in text
    words = " ".join(text.split())
    assert "1 runs of 6; means are over the seeds that are there, and 1 of 2 rows have none" in words
    assert "No run of this table" in render(folder, {})


def test_numbers_in_documents_are_rendered_and_none_can_be_made_up(folder: Path) -> None:
    runs = known(folder, fedavg=[0.8, 0.8, 0.8], local=[None, None, None])
    text = "FedAvg has <!--=two/motionsense/fedavg/own-->99.9<!--/--> here."
    assert "fedavg/own-->80.0<!--/--> here." in render_marks(text, folder, runs)
    both = known(folder, fedavg=[0.8, 0.8, 0.8], local=[0.7, 0.72, 0.68])
    text = "<!--=two/motionsense/fedavg/own-local-->1<!--/-->"
    assert ">+10.0 [+5.0, +15.0]<" in render_marks(text, folder, both)  # 2 points of deviation · 4.303 / √3
    for what in (
        *("two/motionsense/local/own", "two/motionsense/fedavgg/own", "two/own"),
        *("two/motionsense/fedavg/own-local", "two/motionsense/fedavg/own-nobody"),
    ):
        with pytest.raises(SettingsError, match="the mark"):
            render_marks(f"<!--={what}-->1<!--/-->", folder, runs)


def test_summaries_come_back_as_they_were_and_damaged_ones_are_named(tmp_path: Path) -> None:
    write_summary(tmp_path, "a", summary(curve=((1, 0.5),)))
    assert read_summaries(tmp_path) == {"a": summary(curve=((1, 0.5),))}
    write_summary(tmp_path, "a-2", summary(curve=()))
    write_summary(tmp_path, "a", summary(curve=((2, 0.25),)))
    assert read_summaries(tmp_path)["a"].validation_curve == ((2, 0.25),)
    assert len(read_summaries(tmp_path)) == 2
    for damaged in ('{"key": "b", "seed": 1}', '{"seed": 1}', "[]", "{"):
        (tmp_path / "b.jsonl").write_text(damaged)
        with pytest.raises(RunDirectoryError, match=r"b\.jsonl, line 1, is damaged"):
            read_summaries(tmp_path)


def test_summaries_of_one_data_set_written_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    keys = [f"data-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: write_summary(tmp_path, key, summary(curve=())), keys))
    assert sorted(read_summaries(tmp_path)) == sorted(keys)


def test_a_replay_sees_a_score_that_moved_but_not_another_machines_rounding() -> None:
    before = summary().model_copy(update={"measures": {"own": 0.9, "seconds": 5.0}})
    moved = before.model_copy(update={"measures": {"own": 0.91, "seconds": 50.0}})
    assert [each.measure for each in differences(before, moved)] == ["own"]
    assert differences(before, moved.model_copy(update={"hardware": "another"})) == []
    assert draw_cell({"slow": moved, "quick": before}, 10, 3) == "quick"
    later = moved.model_copy(update={"commit": "another"})
    linear = before.model_copy(update={"arguments": ("--model", "har_features")})
    assert differences(before, later) == []  # another engine orders a network's sums otherwise
    assert [each.measure for each in differences(linear, later)] == ["own"]
    assert {draw_cell({"a": before, "linear": linear, "z": before}, 10, seed) for seed in range(20)} == {"linear"}
    with pytest.raises(SettingsError, match="max-seconds"):
        draw_cell({"slow": moved}, 10, 3)


def test_the_page_is_what_the_summaries_say() -> None:
    given = REPOSITORY / "experiments", read_summaries(REPOSITORY / "docs/results")
    made = {"results.md": render(*given), "measures.csv": render_measures(*given)}
    made |= {f"figures/{name}": text for name, text in render_figures(*given).items()}
    for name, text in made.items():
        assert (REPOSITORY / "docs" / name).read_text() == text, "run `python -m sim arena render`"


@pytest.mark.parametrize(("third", "figures"), [("", ["two-ranks.svg"]), ('data = "motionsense"', [])])
def test_arms_are_ranked_over_three_data_sets_and_not_over_one_of_them_twice(
    third: str, figures: list[str], folder: Path
) -> None:
    arms = '[arms.fedprox]\nmethod = "fedprox"\n'
    (folder / "two.toml").write_text(f"{TABLE}{arms}[sets.ucihar]\n[sets.spsw]\n{third}\n")
    runs = known(folder, fedavg=[0.8] * 3, local=[0.7] * 3, fedprox=[0.9] * 3)
    assert list(render_figures(folder, runs)) == figures


def test_arms_without_the_score_are_not_ranked_and_none_are_before_all_have_runs(folder: Path) -> None:
    arms = '[arms.fedprox]\nmethod = "fedprox"\n[arms.pooled]\nmethod = "centralized"\n'
    (folder / "two.toml").write_text(f"{TABLE}{arms}[sets.ucihar]\n[sets.spsw]\n")
    scored: dict[str, list[float | None]] = {"fedavg": [0.8] * 3, "local": [0.7] * 3, "fedprox": [0.9] * 3}
    runs = known(folder, **scored, pooled=[0.9] * 3)
    less = {
        key: each.model_copy(update={"measures": {"own": None}}) if "centralized" in key else each
        for key, each in runs.items()
    }
    assert "pooled" not in render_figures(folder, less)["two-ranks.svg"]
    assert "pooled" in render_figures(folder, runs)["two-ranks.svg"]
    assert render_figures(folder, known(folder, **scored, pooled=[None] * 3)) == {}
    assert render_figures(folder, {}) == {}


def test_a_tuned_row_says_what_was_chosen(folder: Path) -> None:
    tuned = TABLE.replace('method = "local"', 'method = "local"\ntune = true')
    (folder / "two.toml").write_text(f"{tuned}[tuning]\n[tuning.grid]\nlr = [1e-3, 4e-3]\n")
    declaration, runs = read_declaration(folder / "two.toml"), dict[str, CellSummary]()
    while cells := list(open_cells(declaration, runs)):
        runs |= {cell.key: summary(0.5 + 10 * float(str(cell.options.get("lr", 0.001)))) for cell in cells}
    assert {row["arm"]: row["tuned"] for row in measures_of(folder, runs)} == {"fedavg": "", "local": "lr 0.004"}


def test_a_figure_of_ranks_has_an_arm_a_row_and_bars_that_touch_where_arms_do_not_differ() -> None:
    drawn = fromstring(rank_figure({"better & new": 1.0, "middle": 2.5, "worse": 4.0, "worst": 4.0}, 1.0, 3))
    svg = "{http://www.w3.org/2000/svg}"
    bars = [
        (float(one.get("x1", "")), float(one.get("x2", "")))
        for one in drawn.iter(f"{svg}line")
        if one.get("stroke-width")
    ]
    assert [one.text for one in drawn.iter(f"{svg}text") if one.get("text-anchor") == "end"] == [
        *("better & new", "middle", "worse", "worst")
    ]
    assert bars[0][1] < bars[1][0] < bars[1][1] < bars[2][0]  # 1.5 apart, of which 1.0 is the critical difference
    assert bars[2] == bars[3]
    centres = [float(one.get("cx", "")) for one in drawn.iter(f"{svg}circle")]
    assert centres[1] - centres[0] == pytest.approx(1.5 / 3 * AXIS, abs=0.11)


def test_every_summary_is_of_a_table() -> None:
    summaries = read_summaries(REPOSITORY / "docs/results")
    asked: set[str] = set()
    for path in (REPOSITORY / "experiments").glob("*.toml"):
        declaration, have = read_declaration(path), dict(summaries)
        for _ in range(3):  # what decides rounds, what decides rates, the table's own
            missing = list(open_cells(declaration, {k: v for k, v in have.items() if k in asked}))
            asked |= {cell.key for cell in missing} | {cell.pretrained.key for cell in missing if cell.pretrained}
    assert set(summaries) <= asked
