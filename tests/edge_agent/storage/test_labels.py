"""Labelling afterwards: what a span covers, what comes later, undo, and what is left to label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import LabelError
from edge_agent.storage.labels import (
    Stretch,
    known_activity,
    label_file,
    label_sessions,
    label_span,
    sessions,
    undo,
    unlabelled,
    vocabulary,
)
from edge_agent.storage.window_store import WindowStore
from tests.edge_agent.window_factories import BEGAN_S, LABELS, SETTINGS, of_classes, window


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WindowStore]:
    found = WindowStore(tmp_path)
    found.add(of_classes([-1] * 10), LABELS, SETTINGS, WindowsSection(), origin="phone")
    yield found
    found.close()


def activities(store: WindowStore) -> list[str]:
    with store.reading() as db:
        return [row[0] for row in db.execute("SELECT activity FROM windows ORDER BY id")]


def test_a_span_labels_the_windows_of_which_half_lies_in_it(store: WindowStore) -> None:
    # windows begin every 2.56 s: half of the second and more than half of the fifth lie inside
    done = label_span(store, BEGAN_S + 1.5 * 2.56, BEGAN_S + 4.6 * 2.56, "walk")
    assert done.windows == 4
    assert activities(store) == [""] + ["walk"] * 4 + [""] * 5
    assert store.read("c", SETTINGS, LABELS).y.tolist() == [1] * 4


def test_windows_that_come_later_get_the_label_of_the_latest_span_around_them(store: WindowStore) -> None:
    label_span(store, BEGAN_S, BEGAN_S + 100, "walk")
    label_span(store, BEGAN_S + 50, BEGAN_S + 100, "run")
    store.add(
        [window(-1, 10), window(-1, 30), window(0, 31), window(-1, 60)], LABELS, SETTINGS, WindowsSection(), origin="p"
    )
    assert activities(store)[10:] == ["walk", "run", "sit", ""]


def test_undo_takes_back_one_command_after_the_other(store: WindowStore) -> None:
    label_span(store, BEGAN_S, BEGAN_S + 10.24, "walk")
    label_span(store, BEGAN_S + 5.12, BEGAN_S + 15.36, "run")
    assert activities(store) == ["walk"] * 2 + ["run"] * 4 + [""] * 4
    assert undo(store).windows == 4
    assert activities(store) == ["walk"] * 4 + [""] * 6
    assert undo(store) == (1, "walk", 4)
    assert activities(store) == [""] * 10
    with pytest.raises(LabelError, match="no label command"):
        undo(store)


def test_undo_does_not_mind_windows_that_have_gone(store: WindowStore) -> None:
    label_span(store, BEGAN_S, BEGAN_S + 10.24, "walk")
    store.add([window(1, 20)], LABELS, SETTINGS, WindowsSection(max_labelled=2, max_unlabelled=3), origin="phone")
    assert activities(store) == ["walk", "", "", "", "walk"]
    assert undo(store).windows == 1
    assert activities(store) == ["", "", "", "", "walk"]


def test_what_is_unlabelled_is_listed_by_stretches(store: WindowStore) -> None:
    store.add([window(-1, 100)], LABELS, SETTINGS, WindowsSection(), origin="phone")
    label_span(store, BEGAN_S + 4 * 2.56, BEGAN_S + 7 * 2.56, "sit")
    first, second, third = unlabelled(store)
    assert first == Stretch(BEGAN_S, pytest.approx(BEGAN_S + 4 * 2.56), 4)
    assert second == Stretch(pytest.approx(BEGAN_S + 7 * 2.56), pytest.approx(BEGAN_S + 10 * 2.56), 3)
    assert third.windows == 1


def test_an_empty_span_and_an_unknown_name_are_errors(store: WindowStore) -> None:
    with pytest.raises(LabelError, match="swap --from and --to"):
        label_span(store, BEGAN_S, BEGAN_S, "walk")
    assert known_activity(" Walk ", LABELS) == "walk"
    with pytest.raises(LabelError, match=r"did you mean 'walk'.*Known: sit, walk, run"):
        known_activity("wlak", LABELS)
    with pytest.raises(LabelError, match="start the agent once"):
        vocabulary(store)
    store.put(labels=json.dumps(LABELS))
    assert vocabulary(store) == LABELS


def test_a_whole_file_and_whole_sessions_are_labelled_whatever_their_clocks_say(store: WindowStore) -> None:
    for number, (key, name) in enumerate({"k1": "monday/a.csv", "k2": "tuesday/a.csv"}.items(), 1):
        store.put(**{f"taken:{key}": json.dumps({"name": name, "under": "x"})})
        same_time = [window(-1, n, session=number) for n in range(3)]
        store.add(same_time, LABELS, SETTINGS, WindowsSection(), origin=f"csv:{key}")
    assert [(each.number, each.file, each.windows, each.unlabelled) for each in sessions(store)] == [
        (0, "phone", 10, 10), (1, "monday/a.csv", 3, 3), (2, "tuesday/a.csv", 3, 3)
    ]  # fmt: skip
    assert label_file(store, "tuesday/a.csv", "walk").windows == 3
    assert activities(store) == [""] * 13 + ["walk"] * 3
    assert label_sessions(store, [0, 1], "run").windows == 13
    assert activities(store) == ["run"] * 13 + ["walk"] * 3
    # it is no span of time: windows that come later are not touched
    store.add([window(-1, 1, session=3)], LABELS, SETTINGS, WindowsSection(), origin="phone")
    assert activities(store)[-1] == ""
    assert [undo(store).windows, undo(store).windows] == [13, 3]
    assert set(activities(store)) == {""}


def test_a_file_or_session_that_is_not_there_or_not_the_only_one_is_refused(store: WindowStore) -> None:
    for key in ("1", "2"):
        store.put(**{f"taken:{key}": json.dumps({"name": f"{key}/a.csv", "under": "x"})})
        store.add([window(-1, 1, session=int(key))], LABELS, SETTINGS, WindowsSection(), origin=f"csv:{key}")
    with pytest.raises(LabelError, match=r"2 files match: 1/a.csv, 2/a.csv; give more of the path"):
        label_file(store, "a.csv", "walk")
    with pytest.raises(LabelError, match=r"doesn't name exactly one file; did you mean '1/a.csv'"):
        label_file(store, "1/a.cvs", "walk")
    with pytest.raises(LabelError, match="no session 7; `label --sessions`"):
        label_sessions(store, [1, 7], "walk")
