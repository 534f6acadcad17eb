"""Which runs a declaration asks for: shared by tables, chosen by validation, as long as a curve says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.errors import SettingsError
from sim.sweep.arena.cells import (
    Declaration,
    flat_round,
    open_cells,
    pretrained_key,
    read_declaration,
    table_cells,
    tuned_options,
    with_pretrained,
)
from sim.sweep.arena.measures import CellSummary
from sim.sweep.arena.running import Places, as_run

BASE: dict[str, Any] = {
    "title": "T",
    "asks": "Which?",
    "seeds": [0, 1],
    "baseline": "fedavg",
    "options": {"rounds": 4},
    "sets": {"motionsense": {"holdout": "leave-subjects-out:8"}},
    "arms": {"fedavg": {"method": "fedavg", "model": "har_cnn"}, "local": {"method": "local", "model": "har_cnn"}},
}


def declared(**changes: Any) -> Declaration:
    return Declaration.model_validate({**BASE, **changes})


def summary(validation: float | None = 0.5, curve: tuple[tuple[int, float], ...] = (), rounds: int = 4) -> CellSummary:
    return CellSummary(
        arguments=(), seed=0, rounds=rounds, metric="macro_f1", higher_is_better=True, measures={}, clients={},
        validation=validation, validation_curve=curve, plan_sha256="0", data_sha256=None, commit="c", date="2026-11-25",
        hardware="h", versions={},
    )  # fmt: skip


def test_each_seed_of_each_arm_is_one_run_with_the_options_of_all_and_of_its_set() -> None:
    found = list(open_cells(declared(), {}))
    assert [(cell.arm, cell.seed) for cell in found] == [("fedavg", 0), ("fedavg", 1), ("local", 0), ("local", 1)]
    words = " ".join(found[0].arguments)
    assert "--data motionsense" in words
    assert "--rounds 4" in words
    assert "--holdout leave-subjects-out:8" in words


def test_another_table_that_asks_for_the_same_run_finds_its_summary() -> None:
    first = next(open_cells(declared(), {}))
    other = declared(title="Another", seeds=[0], sets={"motionsense": BASE["sets"]["motionsense"]})
    assert first.key not in {cell.key for cell in open_cells(other, {first.key: summary()})}


def test_options_in_another_order_are_the_same_run_and_other_values_are_not() -> None:
    again = declared(arms={"fedavg": {"model": "har_cnn", "method": "fedavg"}})
    longer = declared(options={"rounds": 5})
    key = next(open_cells(declared(), {})).key
    assert next(open_cells(again, {})).key == key
    assert next(open_cells(longer, {})).key != key


def test_options_are_chosen_by_validation_at_a_seed_that_the_table_lacks() -> None:
    tuned = {"fedavg": {"method": "fedavg", "model": "har_cnn", "tune": True}}
    table = declared(arms=tuned, tuning={"seed": 7, "grid": {"lr": [0.001, 0.003]}})
    tried = list(open_cells(table, {}))
    assert [(cell.seed, tuned_options(table, cell)["lr"]) for cell in tried] == [(7, 0.001), (7, 0.003)]
    known = {tried[0].key: summary(0.6), tried[1].key: summary(0.7)}
    assert table_cells(table, "motionsense", "fedavg", {tried[0].key: summary(0.9)}) is None
    cells = table_cells(table, "motionsense", "fedavg", known)
    assert cells is not None
    assert {(cell.seed, cell.options["lr"]) for cell in cells} == {(0, 0.003), (1, 0.003)}
    places = Places(Path("runs"), Path("results"), None, Path("cache"))
    scored = {cell.seed: "--no-new-users" not in as_run(cell, places).arguments for cell in (*tried, *cells)}
    assert scored == {7: False, 0: True, 1: True}


def test_a_tuned_option_at_its_default_is_the_run_of_a_table_without_tuning() -> None:
    tuned = {"fedavg": {"method": "fedavg", "model": "har_cnn", "lr": 0.5, "tune": True}}
    first, second = open_cells(declared(arms=tuned, tuning={"seed": 7, "grid": {"lr": [0.001, 0.003]}}), {})
    plain = next(open_cells(declared(seeds=[7]), {}))
    assert (first.key == plain.key, second.key == plain.key) == (True, False)


def test_all_combinations_of_a_grid_run_and_the_lowest_loss_or_the_highest_score_is_taken() -> None:
    tuned = {"fedavg": {"method": "fedavg", "model": "har_cnn", "lr": 1.0, "tune": True}}
    grid = {"lr": [0.001, 0.003], "normalization": ["client", "federated"]}
    table = declared(arms=tuned, tuning={"seed": 7, "grid": grid})
    tried = list(open_cells(table, {}))
    assert [dict(tuned_options(table, cell)) for cell in tried] == [
        {"lr": lr, "normalization": whose} for lr in (0.001, 0.003) for whose in ("client", "federated")
    ]
    scores = (0.4, None, 0.7, float("nan"))
    for higher_is_better, expected in ((True, (0.003, "client")), (False, (0.001, "client"))):
        known = {
            cell.key: summary(score).model_copy(update={"higher_is_better": higher_is_better})
            for cell, score in zip(tried, scores, strict=True)
        }
        cells = table_cells(table, "motionsense", "fedavg", known)
        assert cells is not None
        assert {tuple(tuned_options(table, cell).values()) for cell in cells} == {expected}


def with_encoder(**changes: Any) -> Declaration:
    encoder = {
        "task": "masked_reconstruction",
        "method": "centralized",
        "model": "hart",
        "data": {"motionsense": "spsw"},
    }
    arms = {
        "fedavg": {"method": "fedavg", "model": "hart"},
        "linear": {"method": "analytic", "model": "hart", "init": "pretrained:mae"},
    }
    return declared(**{"arms": arms, "pretraining": {"mae": encoder}, **changes})


def test_a_cell_starts_from_the_pretraining_of_its_seed_wherever_runs_lie() -> None:
    plain, _, first, second = open_cells(with_encoder(), {})
    assert plain.pretrained is None
    assert first.pretrained is not None
    assert second.pretrained is not None
    assert first.pretrained.arguments == (
        "--data", "spsw", "--task", "masked_reconstruction", "--method", "centralized", "--model", "hart", "--seed", "0"
    )  # fmt: skip
    assert (first.pretrained.seed, second.pretrained.seed) == (0, 1)
    assert pretrained_key(first.arguments) == first.pretrained.key
    assert pretrained_key(plain.arguments) is None
    words = with_pretrained(first.arguments, Path("runs"))
    assert words[words.index("--init") + 1] == f"runs/{first.pretrained.key}"


def test_another_pretraining_makes_another_cell() -> None:
    longer = dict(with_encoder().pretraining["mae"].model_dump(), rounds=7)
    ours, theirs = (list(open_cells(one, {})) for one in (with_encoder(), with_encoder(pretraining={"mae": longer})))
    assert ours[0].key == theirs[0].key
    assert ours[2].key != theirs[2].key


def test_all_arms_run_until_one_curve_is_flat() -> None:
    table = declared(options={}, stop={"arm": "fedavg", "max_rounds": 8, "window": 2, "gain": 0.01})
    (first,) = open_cells(table, {})
    assert first.options["rounds"] == 8
    curve = ((1, 0.2), (2, 0.5), (3, 0.6), (4, 0.605), (5, 0.606), (6, 0.9))
    known = {first.key: summary(curve=curve, rounds=8)}
    assert flat_round(table, known[first.key]) == 3
    assert {cell.options["rounds"] for cell in open_cells(table, known)} == {3}


def test_a_curve_that_still_climbs_goes_to_the_end() -> None:
    table = declared(options={}, stop={"arm": "fedavg", "max_rounds": 4, "window": 2, "gain": 0.01})
    assert flat_round(table, summary(curve=((1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)))) == 4


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"baseline": "fedavgg"}, "did you mean fedavg"),
        ({"compared": "owns"}, "did you mean own"),
        ({"seeds": [1, 1]}, "twice"),
        ({"arms": {"fedavg": {"method": "fedavg", "tune": True}}}, "no .tuning."),
        ({"arms": {"fedavg": {"method": "fedavg", "init": "pretrained:mae"}}}, "init: 'mae' is not known"),
        ({"tuning": {"seed": 1, "grid": {"lr": [0.1]}}}, "take another"),
    ],
)
def test_a_slip_is_said_before_anything_runs(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        declared(**changes)


def test_a_table_that_is_not_there_names_those_that_are(tmp_path: Any) -> None:
    (tmp_path / "one.toml").write_text("")
    with pytest.raises(SettingsError, match="one"):
        read_declaration(tmp_path / "two.toml")
