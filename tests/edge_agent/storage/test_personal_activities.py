"""A person's own activities: named, bounded, and in nothing that is trained on unless they count as a label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_agent.config.sensors import WindowsSection
from edge_agent.errors import LabelError
from edge_agent.storage.labels import (
    MAX_ACTIVITIES,
    add_activity,
    count_as,
    label_span,
    personal_activities,
    plan_labels,
    remove_activity,
    vocabulary,
)
from edge_agent.storage.window_store import WindowStore
from tests.edge_agent.window_factories import BEGAN_S, LABELS, SETTINGS, of_classes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WindowStore]:
    with closing(WindowStore(tmp_path)) as found:
        found.put(labels=json.dumps(LABELS))
        found.add(of_classes([0, 0, 1, -1, -1, -1]), LABELS, SETTINGS, WindowsSection(), origin="phone:1")
        yield found


def test_its_windows_are_trained_on_only_as_what_they_count_as(store: WindowStore) -> None:
    name = add_activity(store, "  pushing   the pram ", plan_labels(store))
    assert name == "pushing the pram"
    assert vocabulary(store) == (*LABELS, name)
    assert label_span(store, BEGAN_S + 3 * 2.56, BEGAN_S + 6 * 2.56, name).windows == 3
    assert store.read("me", SETTINGS, LABELS).y.tolist() == [0, 0, 1]
    count_as(store, name, "run", LABELS)
    assert store.read("me", SETTINGS, LABELS).y.tolist() == [0, 0, 1, 2, 2, 2]
    assert store.outline("me", SETTINGS, LABELS).y.tolist() == [0, 0, 1, 2, 2, 2]
    assert store.read("me", SETTINGS, (*LABELS, name)).y.tolist() == [0, 0, 1, 3, 3, 3]  # for the person's own head
    count_as(store, name, "", LABELS)
    assert store.read("me", SETTINGS, LABELS).y.tolist() == [0, 0, 1]
    assert remove_activity(store, name) == 3
    assert (personal_activities(store), store.counts()) == ({}, {"": 3, "sit": 2, "walk": 1})


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "Walk", "a\x00b"])
def test_what_is_no_name_is_refused(store: WindowStore, name: str) -> None:
    with pytest.raises(LabelError):
        add_activity(store, name, LABELS)


def test_there_are_eight_at_the_most_and_unknown_ones_are_said(store: WindowStore) -> None:
    for number in range(MAX_ACTIVITIES):
        add_activity(store, f"mine {number}", LABELS)
    with pytest.raises(LabelError, match="the maximum"):
        add_activity(store, "another", LABELS)
    with pytest.raises(LabelError, match="there is no activity 'yours'"):
        remove_activity(store, "yours")
    with pytest.raises(LabelError, match="there is no activity 'fly'"):
        count_as(store, "mine 0", "fly", LABELS)
