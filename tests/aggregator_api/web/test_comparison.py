"""Federations side by side: differences worked out by hand, and who may see which."""

from __future__ import annotations

import time

import pytest

from aggregator_api.federations.service import get_federation
from aggregator_api.http.queries.comparisons import paired
from aggregator_api.storage.db.models import DeviceRow, FederationRow, MetricRow
from tests.aggregator_api.http_client import TestClient
from tests.aggregator_api.web.visitors import Visitor, key_of

ROUND = 77


def test_differences_are_paired_by_the_devices_names(server: TestClient, operator: Visitor) -> None:
    with server.runtime.database.write() as session:
        for name, scores in (("walks", (0.7, 0.7, 0.6, 0.1)), ("gestures", (0.8, 0.7, 0.9))):
            federation = get_federation(session, name)
            for k, score in enumerate(scores):
                device = DeviceRow(federation_id=federation.id, name=f"paired-{k}", state="ready", examples=9)
                device.detail, device.enrolled_at, device.seen_at = "", time.time(), time.time()
                device.enrolment, device.adoption_reason = "approved", ""
                session.add(device)
                session.flush()
                session.add(figure(federation, device, score))
        session.flush()
        walks, gestures = (get_federation(session, name) for name in ("walks", "gestures"))
        found = paired(session, gestures, ROUND, walks, ROUND)
        session.rollback()
    # gains 0.1, 0 and 0.3: mean 2/15, deviation 0.152753, t of two degrees of freedom 4.303
    assert (found.pairs, found.better, found.worse) == (3, 2, 0)
    assert found.gain == pytest.approx(2 / 15)
    assert found.half_width == pytest.approx(4.303 * 0.1527525 / 3**0.5, rel=1e-4)
    assert not found.is_more_than_chance
    shown = operator.get("/compare?federation=walks&federation=gestures")
    assert shown.status_code == 200
    assert "<polyline" in shown.text  # curves need no script
    assert operator.get("/compare?" + "&".join(f"federation=x{k}" for k in range(5))).status_code == 422


def figure(federation: FederationRow, device: DeviceRow, score: float) -> MetricRow:
    of = {"federation_id": federation.id, "device_id": device.id, "round_number": ROUND}
    return MetricRow(**of, name="macro_f1_after", value=score, recorded_at=time.time())


def test_a_key_for_one_federation_compares_no_other(server: TestClient) -> None:
    own = Visitor.logged_in(server, key_of(server, ["read"], "gestures"))
    assert own.get("/compare?federation=gestures").status_code == 200
    assert "walks" not in own.get("/compare").text
    assert own.get("/compare?federation=gestures&federation=walks").status_code == 403


def test_the_journal_is_narrowed_by_subject_device_and_time(operator: Visitor) -> None:
    here = "/federations/walks/journal"
    about = operator.get(f"{here}?about=update").text
    assert 'update <span class="state quarantined">' in about
    assert '<span class="state announced">' not in about
    assert "Nothing of that kind" in operator.get(f"{here}?about=update&device=phone-01").text
    within = operator.get(f"{here}?about=round&within=hour").text
    assert within.count('round <span class="state announced">') in range(10, 13)  # of fourteen, one each five minutes
