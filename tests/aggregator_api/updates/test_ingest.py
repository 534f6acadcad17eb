"""Uploads handed to the server message by message: complete, repeated, out of order, or by the wrong device."""

from __future__ import annotations

import random

import pytest
import torch
from sqlalchemy import select

from aggregator_api.storage.db.models import DeviceRow, EventRow
from federation import wire
from federation.methods import method_from_json
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, DeviceStatus, read
from federation.protocol.signing import unwrap
from federation.records.tree import flatten, map_tree
from tests.aggregator_api.bench import Bench, HttpBench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, parcel


def test_two_devices_and_two_rounds_give_the_methods_aggregate_bit_for_bit(collecting: Bench) -> None:
    method = method_from_json({"name": "fedavg"})
    for number in (1, 2):
        state = wire.decode(collecting.state(), limit_bytes=1 << 20)
        first, second = collecting.update_of("a", examples=20), collecting.update_of("b", examples=10)
        assert collecting.upload(second).status == "accepted"
        assert collecting.upload(first).status == "accepted"
        wait_for(lambda number=number: collecting.now().round > number or collecting.now().state == "finished")
        # by hand as well: the weights are 20/30 and 10/30
        expected = method.aggregate(state, iter([first.update, second.update]))
        by_hand = map_tree(lambda x, y: (x.double() * 20 + y.double() * 10) / 30, first.tree, second.tree)
        assert collecting.state() == wire.encode(expected)
        got = flatten(wire.decode(collecting.state(), limit_bytes=1 << 20))
        for name, value in flatten(by_hand).items():
            torch.testing.assert_close(got[name].double(), value, rtol=1e-6, atol=1e-7)
    assert collecting.now().state == "finished"
    wait_for(lambda: collecting.wires.announcements()[-1].state == "finished")


def test_a_round_opens_only_once_enough_devices_are_ready(waiting: Bench) -> None:
    assert waiting.now().state == "waiting"
    waiting.say("a", "ready")
    waiting.say("b", "collecting")
    assert waiting.now().state == "waiting"
    waiting.say("b", "ready")
    announced = waiting.now()
    assert (announced.state, announced.round, announced.invited) == ("collecting", 1, 2)
    assert waiting.wires.announcements()[-1].invited == 2
    assert waiting.invited() == ("a", "b")
    assert all(retain for topic, _, retain in waiting.wires.sent if topic == topics.announce(FEDERATION))


def test_chunks_may_come_in_any_order_and_twice(collecting: Bench) -> None:
    update = collecting.update_of("a")
    assert collecting.begin(update).next_chunk == 0
    numbered = list(enumerate(update.chunks()))
    assert len(numbered) > 3
    shuffled = random.Random(0).sample([*numbered, *numbered], 2 * len(numbered))
    for n, chunk in shuffled:
        collecting.send(update.topic("chunk", n), chunk)
    collecting.send(update.topic("end"))
    assert collecting.last("a").status == "accepted"


def test_an_end_with_a_missing_chunk_is_answered_with_its_number(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.begin(update)
    for n, chunk in enumerate(update.chunks()):
        if n != 2:
            collecting.send(update.topic("chunk", n), chunk)
    collecting.send(update.topic("end"))
    assert (collecting.last("a").status, collecting.last("a").next_chunk) == ("send", 2)
    assert collecting.begin(update).next_chunk == 2  # a repeated begin keeps what is here
    collecting.send(update.topic("chunk", 2), update.chunks()[2])
    collecting.send(update.topic("end"))
    assert collecting.last("a").status == "accepted"


def test_an_accepted_update_is_acknowledged_again_and_counted_once(collecting: Bench) -> None:
    update = collecting.update_of("a")
    collecting.upload(update)
    answers = len(collecting.wires.acknowledgements("a"))
    assert collecting.begin(update).status == "accepted"
    collecting.send(update.topic("chunk", 0), update.chunks()[0])
    collecting.send(update.topic("end"))
    assert [a.status for a in collecting.wires.acknowledgements("a")[answers:]] == ["accepted", "accepted"]
    assert collecting.count("accepted") == 1


def test_a_device_reports_once_per_round(collecting: Bench) -> None:
    collecting.upload(collecting.update_of("a"))
    second = parcel(collecting.now(), "a", map_tree(torch.zeros_like, collecting.update_of("a").tree))
    assert "already reported" in collecting.refused(second)


def test_a_device_outside_the_cohort_is_refused(collecting: Bench) -> None:
    collecting.say("c", "ready")
    assert "not in the cohort" in collecting.refused(collecting.update_of("c"))


def test_a_device_that_never_enrolled_is_refused(collecting: Bench) -> None:
    assert "not enrolled" in collecting.refused(collecting.update_of("stranger"))


def test_an_update_to_a_federation_that_does_not_exist_is_answered(collecting: Bench) -> None:
    manifest = collecting.update_of("a", federation="nowhere").manifest
    collecting.send(topics.update("nowhere", "a", manifest.update_id, "begin"), manifest.model_dump_json().encode())
    if isinstance(collecting, HttpBench):
        assert collecting.problems == ["there is no federation 'nowhere' on this server"]
        return
    topic, body, _ = collecting.wires.sent[-1]
    assert topic == topics.ack("nowhere", "a")
    assert "no federation 'nowhere'" in read(Acknowledgement, unwrap(body).body).reason


def test_a_manifest_of_another_device_is_refused(collecting: Bench) -> None:
    theirs = collecting.update_of("b")
    topic = topics.update(FEDERATION, "a", theirs.manifest.update_id, "begin")
    collecting.send(topic, theirs.manifest.model_dump_json().encode())
    assert collecting.last("a").status == "refused"
    assert "topic" in collecting.last("a").reason
    assert collecting.upload(theirs).status == "accepted"  # b itself is not harmed by it


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_version": "0" * 64}, "started from"),
        ({"round": 2}, "has not begun"),
        ({"method": "fedali"}, "this federation runs 'fedavg'"),
        ({"class_counts": (1, 2, 3)}, "class_counts"),
        ({"class_counts": (-1, 2)}, "class_counts"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(collecting: Bench, changes: dict[str, object], words: str) -> None:
    update = parcel(collecting.now(), "a", collecting.update_of("a").tree, **changes)
    assert words in collecting.begin(update).reason


def test_a_third_upload_at_a_time_is_refused(collecting: Bench) -> None:
    tree = collecting.update_of("a").tree
    answers = [
        collecting.begin(parcel(collecting.now(), "a", map_tree(lambda v, n=n: v + n, tree))).status for n in range(3)
    ]
    assert answers == ["send", "send", "refused"]


NONSENSE = [
    ("gaitway/v1/walk/devices/a/status", b"{"),
    ("gaitway/v1/walk/devices/a/status", b""),
    ("gaitway/v1/walk/devices/a/status", b'{"state": "hacked"}'),
    ("gaitway/v1/nowhere/devices/a/status", b'{"state": "ready"}'),
    ("gaitway/v1/walk/devices/a/update/u/begin", b"\xff\xfe"),
    ("gaitway/v1/walk/devices/a/update/u/begin", b"x" * 300_000),
    ("gaitway/v1/walk/devices/a/update/u/chunk/0", b"x"),
    ("gaitway/v1/walk/devices/a/update/u/chunk/-1", b"x"),
    ("gaitway/v1/walk/devices/a/update/../begin", b"x"),
    ("gaitway/v1/walk/devices/../../../etc/update/u/begin", b"x"),
    ("something/else", b"x"),
]


def test_nonsense_changes_nothing(collecting: Bench) -> None:
    before = collecting.now().model_dump(exclude={"created", "serial"})
    for topic, payload in NONSENSE:
        collecting.send(topic, payload)
        assert collecting.now().model_dump(exclude={"created", "serial"}) == before, topic
    assert collecting.count("accepted") == 0


def test_a_status_enrols_a_device_and_a_last_will_keeps_its_examples(collecting: Bench) -> None:
    collecting.say("c", "ready", examples=77)
    collecting.say("c", "offline", examples=0)
    with collecting.runtime.database.read() as session:
        row = session.scalars(select(DeviceRow).where(DeviceRow.name == "c")).one()
        kinds = session.scalars(select(EventRow.kind).where(EventRow.device == "c")).all()
    assert (row.state, row.examples) == ("offline", 77)
    assert list(kinds) == ["device.enrolled", "device.ready", "device.offline"]


def test_why_a_device_has_left_is_kept_when_its_last_will_comes(collecting: Bench) -> None:
    collecting.say("c", "ready")
    for detail in ("its owner has left", ""):
        said = DeviceStatus(state="offline", detail=detail)
        collecting.send(topics.status(FEDERATION, "c"), said.model_dump_json().encode())
    with collecting.runtime.database.read() as session:
        row = session.scalars(select(DeviceRow).where(DeviceRow.name == "c")).one()
        [said] = session.scalars(select(EventRow.detail).where(EventRow.kind == "device.offline"))
        assert (row.state, row.detail, said) == ("offline", "its owner has left", "its owner has left")
    collecting.say("c", "ready")
    with collecting.runtime.database.read() as session:
        assert session.scalars(select(DeviceRow.detail).where(DeviceRow.name == "c")).one() == ""
