"""The windows of known recordings are what they have been, bit for bit, and nothing is odd about them."""

from __future__ import annotations

import json

import pytest

from har_pipeline import prepare
from tests.har_pipeline.known_windows import FILE, FOLDERS, fingerprint, made_on

SIZES = {"motionsense": pytest.mark.ci, "spsw": pytest.mark.ci}


@pytest.mark.data
@pytest.mark.parametrize("dataset", [pytest.param(name, marks=SIZES.get(name, ())) for name in FOLDERS])
def test_known_windows_are_unchanged_and_raise_nothing(data, dataset):
    record = json.loads(FILE.read_text("utf-8"))
    prepared = prepare(dataset, data / FOLDERS[dataset])
    assert prepared.findings == ()
    found = {client: fingerprint(windows) for client, windows in prepared.clients.items()}
    known = record[dataset]
    assert {client: each[0] for client, each in found.items()} == {client: each[0] for client, each in known.items()}
    if record["made_on"] == made_on():
        assert found == known
    else:  # another CPU or numpy rounds the last bits differently
        assert {client: each[2] for client, each in found.items()} == pytest.approx(
            {client: each[2] for client, each in known.items()}, rel=1e-5
        )
