"""Combinations: members with their own presets and options, one name per activity, errors that name the member."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from har_pipeline import (
    PipelineSettings,
    SettingsError,
    SourceError,
    dataset_labels,
    dataset_names,
    dataset_settings,
    prepare,
    prepare_members,
    recordings,
)
from har_pipeline.combination import MERGED, SYNONYMS
from har_pipeline.readers import APPS, READERS
from tests.har_pipeline import layouts, layouts_pretraining

UNION_LABELS = (
    *("downstairs", "jogging", "lying", "sitting", "sitting_down", "standing", "standing_up"),
    *("turning", "upstairs", "walking"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """One folder with small files of every data set that has any."""
    folder = tmp_path_factory.mktemp("all")
    for files in (layouts.motionsense, layouts.ucihar, layouts.spsw, layouts.hhar, layouts.realworld):
        layouts.unpacked(files(), folder / files.__name__)
    for files in (layouts_pretraining.pamap2, layouts_pretraining.mobiact, layouts_pretraining.shl):
        layouts.unpacked(files(), folder / files.__name__)
    return folder


def test_every_published_activity_has_one_common_name():
    published = [name for names in MERGED.values() for name in names]
    assert len(published) == len(set(published)) == len(SYNONYMS)
    named = [name for name in READERS if name != "described" and READERS[name] not in APPS]
    known = {label for name in named for label in dataset_labels(name)}
    assert set(published) <= known
    # a common name is no synonym of another one, or two activities would depend on the order of merging
    assert not set(MERGED) & set(SYNONYMS)


def test_combined_merges_hhar_and_realworld_into_nine_activities(root):
    dataset = prepare("combined", root)
    assert len(dataset.labels) == 9
    assert dataset.labels == dataset_labels("combined")
    assert {dataset.labels[y] for y in dataset.clients["hhar-a_s3"].y} == {"walking"}
    assert {dataset.labels[y] for y in dataset.clients["realworld-2_shin"].y} == {"walking", "climbingup"}
    alone = prepare("combined", root, clients=["hhar-a_s3"])
    assert alone.clients["hhar-a_s3"].x.tobytes() == dataset.clients["hhar-a_s3"].x.tobytes()
    replayed = list(recordings("combined", root, clients=["realworld-1_waist"]))
    assert {(each.client, *np.unique(each.activity)) for each in replayed} == {("realworld-1_waist", "walking")}


def test_union_gives_each_member_its_own_preset_and_the_same_windows_as_alone(root):
    dataset = prepare("union", root, dataset_settings("union"))
    assert dataset.labels == dataset_labels("union") == UNION_LABELS
    for member in ("motionsense", "ucihar", "spsw"):
        alone = prepare(member, root)
        mine = [client for client in dataset.clients if client.startswith(f"{member}-")]
        assert mine == [f"{member}-{client}" for client in alone.clients]
        for client, windows in alone.clients.items():
            united = dataset.clients[f"{member}-{client}"]
            assert united.x.tobytes() == windows.x.tobytes()
            assert [SYNONYMS[alone.labels[y]] for y in windows.y] == [dataset.labels[y] for y in united.y]
    watch = dataset.clients["spsw-s03_sw"]
    assert np.diff(watch.start_s[watch.session == 0]) == pytest.approx(0.32)
    assert np.diff(dataset.clients["motionsense-s01"].start_s)[0] == pytest.approx(1.28)


def test_settings_of_a_combination_change_all_its_members_and_keep_the_rest_of_their_presets(root):
    changed = PipelineSettings(label_share=0.9, keep_unlabelled=True)
    members = {each.name: each.settings for each in (prepare("hhar", root), prepare("spsw", root))}
    assert members["spsw"].stride == 16
    dataset = prepare("hhar+spsw", root, changed)
    assert dataset.settings == changed
    assert {each.settings.label_share for each in prepare_members("hhar+spsw", root, changed)} == {0.9}
    assert [each.settings.stride for each in prepare_members("hhar+spsw", root, changed)] == [64, 16]
    assert -1 in dataset.clients["hhar-a_nexus4"].y
    with pytest.raises(SettingsError, match="union, member ucihar: ucihar is published as windows"):
        prepare("union", root, PipelineSettings(stride=32))


def test_options_are_given_by_member(root):
    options = {"synthetic": {"subjects": 1, "phones": 1, "minutes": 0.5}}
    dataset = prepare("motionsense+synthetic", root, options=options)
    assert list(dataset.clients) == ["motionsense-s01", "motionsense-s24", "synthetic-s00_phone100-waist"]
    acc = {"acceleration": "specific force", "acc": {"columns": ["x", "y", "z"]}}
    own = {"described": {"labels": ["walk", "hop"], "activity": "what", "rate_hz": 50, **acc}}
    assert dataset_labels("motionsense+described", own)[-2:] == ("upstairs", "walking")
    assert "hop" in dataset_labels("motionsense+described", own)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("union", {"stride": 16}, r"union takes options by member, as in \{'motionsense': .*got 'stride'"),
        ("union", {"spsv": {}}, "did you mean 'spsw'"),
        ("union", {"spsw": 16}, "the options of its member spsw are 16; expected a mapping"),
        ("union", {"spsw": {"rate": 3}}, "union, member spsw: unknown option 'rate' for spsw"),
        (
            "hhar+realworld",
            {"realworld": {"subjct": 3}},
            r"hhar\+realworld, member realworld: .*did you mean 'subject'",
        ),
        ("hhar+hhar", None, "names a data set twice"),
        ("hhar+motionsens", None, "did you mean 'motionsense'"),
        ("hhar+described", None, "member described: described: no description of the files"),
    ],
)
def test_what_fits_no_member_is_refused_by_name(root, name, options, message):
    with pytest.raises(SettingsError, match=message):
        prepare(name, root, options=options)


def test_a_member_without_files_or_with_other_windows_is_named(root, tmp_path):
    layouts.unpacked(layouts.motionsense(), tmp_path)
    with pytest.raises(SourceError, match="union, member ucihar: no ucihar files under"):
        prepare("union", tmp_path)
    assert list(prepare("union", tmp_path, clients=["motionsense-s01"]).clients) == ["motionsense-s01"]
    with pytest.raises(SettingsError, match=r"has no client 's01'; they are called \{member\}-\{client\}"):
        prepare("union", root, clients=["motionsense-s01", "s01"])
    with pytest.raises(SettingsError, match="union, member spsw: spsw has no client 's99_sp'"):
        prepare("union", root, clients=["spsw-s99_sp"])
    with pytest.raises(SettingsError, match="is one data set; use prepare"):
        next(prepare_members("hhar", root))


def test_pretraining_pools_five_sets_that_can_be_passed_one_at_a_time(root, tmp_path):
    assert {"sitting", "cycling", "rope_jumping", "fall_forward", "subway"} <= set(dataset_labels("pretraining"))
    members = list(prepare_members("pretraining", root, cache_dir=tmp_path))
    assert [next(iter(each.clients)).partition("-")[0] for each in members] == [
        *("pamap2", "motionsense", "mobiact", "ucihar", "shl")
    ]
    whole = prepare("pretraining", root, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 5
    assert list(whole.clients) == sorted(client for each in members for client in each.clients)
    assert {each.labels for each in members} == {whole.labels}
    assert {whole.labels[y] for y in whole.clients["shl-user3_hand"].y} == {"walking", "driving"}
    assert whole.origin("shl-user3_hand") == ("shl", "shl-user3", "mate9", "hand")


def test_every_combination_has_json_settings_and_distinct_labels():
    for name in ("combined", "union", "pretraining"):
        assert name in dataset_names()
        assert PipelineSettings.from_json(json.loads(json.dumps(dataset_settings(name).to_json()))).stride == 64
        assert len(set(dataset_labels(name))) == len(dataset_labels(name))
