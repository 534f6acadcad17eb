"""The models that a device keeps, through judgements, going back by hand, and releases that are withdrawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import Kind
from edge_agent.serving.model_registry import ModelRegistry, Verdict
from edge_agent.storage.state_store import StateStore
from export.runtime import Session
from federation.rounds.serving import TIE
from har_pipeline import ClientWindows
from tests.edge_agent.serving.test_acceptance import candidate, holdout, judge

PERFECT, HALF = 0, 1
"""How many classes a model confuses: macro-F1 1.0 and 0.556; over 60 windows that is shown, over 30 it is not."""
MANY, FEW = holdout(60), holdout(30)
MISLEADING = replace(FEW, y=np.where(FEW.y == 0, 2, FEW.y))
"""Here the model that confuses a class is the better one."""


class Shelf:
    """A device's registry, and judgements of models that are made for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, StateStore(folder)
        self.registry, self.made = ModelRegistry(self.store), 0

    def judged(
        self,
        confuses: int,
        number: int,
        kind: Kind = "train",
        windows: ClientWindows = MANY,
        release: int = 0,
        noise: float = 0.0,
    ) -> Verdict:
        self.made += 1
        made = candidate(self.folder / f"job{self.made}", confuses, scale=1.0 + self.made, noise=noise)
        return self._judge(made, Evaluate(number, kind, release), windows)

    def _judge(self, folder: Path, asked: Evaluate, windows: ClientWindows) -> Verdict:
        return judge(folder, asked, windows, self.registry.present(), self.registry.others())

    def commits(self, *args: Any, **fields: Any) -> str:
        verdict = self.judged(*args, **fields)
        assert not self.registry.is_overtaken(verdict)
        self.registry.commit(verdict)
        return verdict.answer

    @property
    def used(self) -> tuple[str, int] | None:
        present = self.registry.present()
        return (present["source"], present["round"]) if present else None

    def answers(self, model: Mapping[str, Any], windows: ClientWindows) -> np.ndarray:
        """A model's answers by its file."""
        return Session.load(Path(model["path"])).predict(windows.x).logits.argmax(axis=1)

    def recall(self, model: Mapping[str, Any], windows: ClientWindows) -> float:
        """A model's mean recall, by its file and scikit-learn."""
        return float(balanced_accuracy_score(windows.y, self.answers(model, windows)))

    def check_choice(self, windows: ClientWindows) -> None:
        """No own model that the device holds has a higher mean recall than the own one that serves, but for a tie."""
        present = self.registry.present()
        assert present is None or all(
            self.recall(other, windows) <= self.recall(present, windows) + TIE
            for other in self.registry.others()
            if other["source"] != "global" and present["source"] != "global"
        )

    def score(self, windows: ClientWindows) -> float:
        """The served model's macro-F1, by its file and scikit-learn."""
        present = self.registry.present()
        assert present is not None
        answered = Session.load(Path(present["path"])).predict(windows.x).logits.argmax(axis=1)
        return float(f1_score(windows.y, answered, average="macro"))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.store.close()


def test_the_personal_model_stays_where_the_global_one_of_the_same_round_is_worse(shelf: Shelf) -> None:
    assert shelf.commits(PERFECT, 3) == "adopted"
    assert shelf.commits(HALF, 3, "adopt") == "kept"
    assert shelf.used == ("personalized", 3)
    (other,) = shelf.registry.others()
    assert (other["source"], other["round"]) == ("global", 3)
    compared = shelf.registry.compared()
    assert compared is not None
    assert [(row["source"], round(row["score"], 3)) for row in compared["models"]] == [
        ("global", 0.556), ("personalized", 1.0)
    ]  # fmt: skip


def test_a_global_model_and_then_a_personal_one_of_the_same_round_each_have_their_turn(shelf: Shelf) -> None:
    assert shelf.commits(HALF, 3, "adopt") == "adopted"
    assert shelf.commits(PERFECT, 3, "export") == "adopted"
    assert shelf.used == ("personalized", 3)
    assert shelf.registry.rollback()["source"] == "global"


def test_a_model_that_few_windows_did_not_favor_is_used_once_more_windows_do(shelf: Shelf) -> None:
    assert shelf.commits(HALF, 1, "adopt") == "adopted"
    assert shelf.commits(PERFECT, 2, windows=MISLEADING) == "kept"
    assert shelf.commits(HALF, 3, "adopt", MANY) == "kept"
    assert shelf.used == ("personalized", 2)
    assert shelf.registry.rollback()["round"] == 1


def test_what_a_person_left_does_not_come_back_by_itself(shelf: Shelf) -> None:
    shelf.commits(HALF, 1)
    shelf.commits(PERFECT, 2)
    shelf.registry.rollback()
    assert shelf.commits(2, 3) == "failed"
    assert shelf.used == ("personalized", 1)
    shelf.registry.rollback()  # a person may still undo it
    assert shelf.used == ("personalized", 2)


def test_a_withdrawn_release_is_left_however_good_it_is_and_is_no_choice_any_more(shelf: Shelf) -> None:
    shelf.commits(HALF, 1)
    assert shelf.commits(PERFECT, 2, "adopt", release=7) == "adopted"
    shelf.registry.revoke(7)
    assert shelf.used == ("personalized", 1)
    assert shelf.commits(2, 3) == "failed"
    assert shelf.used == ("personalized", 1)
    # one that was kept back and is withdrawn is gone as well, and a released one is never chosen by itself
    assert shelf.commits(PERFECT, 4, "adopt", FEW, release=8) == "adopted"
    assert shelf.commits(HALF, 5, "adopt", FEW, release=9) == "kept"
    shelf.registry.revoke(8)
    assert shelf.used == ("personalized", 1)
    assert all("rollout" not in other for other in shelf.registry.others())


def test_an_own_model_in_the_place_of_a_release_is_compared_with_it_and_goes_with_it(shelf: Shelf) -> None:
    assert shelf.commits(HALF, 1, "adopt", release=7) == "adopted"
    assert shelf.commits(PERFECT, 2) == "adopted"  # as the plan's rollout.own_models allows
    assert shelf.used == ("personalized", 2)
    # the next release is no worse than the one before, although the device's own model is better than both
    verdict = shelf.judged(HALF, 3, "adopt", release=8)
    assert (verdict.answer, "it is no worse" in verdict.reason) == ("adopted", True)
    present = shelf.registry.present()
    assert present is not None
    assert present["rollout"] == 7
    shelf.registry.revoke(7)
    assert shelf.used is None


def test_a_verdict_against_a_model_that_is_not_used_any_more_does_not_count(shelf: Shelf) -> None:
    shelf.commits(HALF, 1)
    shelf.commits(PERFECT, 2, "adopt", release=7)
    shelf.commits(PERFECT, 3, "adopt", release=8)
    verdict = shelf.judged(PERFECT, 4, "adopt", release=9)
    assert verdict.good
    shelf.registry.revoke(8)  # while it was judged
    assert shelf.registry.is_overtaken(verdict)


def test_an_older_model_that_was_exported_later_does_not_displace_the_newer_one(shelf: Shelf) -> None:
    shelf.commits(PERFECT, 1, "adopt")
    shelf.commits(PERFECT, 5)
    shelf.commits(PERFECT, 4, "export")
    assert shelf.used == ("personalized", 5)
    assert [(other["source"], other["round"]) for other in shelf.registry.others()] == [("global", 1)]
    named = {Path(model["path"]).stem for model in (shelf.registry.present(), *shelf.registry.others()) if model}
    assert {path.stem for path in (shelf.folder / "models").iterdir()} == named


MODELS = st.tuples(st.sampled_from(["train", "adopt", "export"]), st.integers(0, 2), st.floats(0, 1.5), st.booleans())


@settings(deadline=None, max_examples=12)
@given(st.lists(MODELS, min_size=2, max_size=6), st.sampled_from([24, 60, 120]))
def test_no_model_of_its_own_that_a_device_holds_is_better_than_the_one_of_its_own_that_serves(
    models: list[tuple[Kind, int, float, bool]], count: int
) -> None:
    draw, windows = np.random.default_rng(0), holdout(count)
    windows = windows.select(np.arange(count))
    windows.x[:] += draw.normal(0, 0.6, (count, 1, 6)).astype(np.float32)
    with TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        for number, (kind, confuses, noise, _) in enumerate(models):
            shelf.commits(confuses, number, kind, windows, noise=noise)
            shelf.check_choice(windows)
        shelf.store.close()


@settings(deadline=None, max_examples=8)
@given(st.lists(MODELS, min_size=2, max_size=6), st.sampled_from([24, 60, 120]))
def test_a_released_model_never_lowers_the_served_models_score_on_the_windows_that_decided_it(
    models: list[tuple[Kind, int, float, bool]], count: int
) -> None:
    draw, windows = np.random.default_rng(0), holdout(count)
    windows.x[:] += draw.normal(0, 0.6, (count, 1, 6)).astype(np.float32)
    with TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        for number, (_, confuses, noise, _) in enumerate(models):
            before = shelf.score(windows) if shelf.used else 0.0
            shelf.commits(confuses, number, "adopt", windows, release=number + 1, noise=noise)
            assert not shelf.used or shelf.score(windows) >= before
        shelf.store.close()
