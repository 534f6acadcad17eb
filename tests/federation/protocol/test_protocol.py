"""Topics, messages and chunks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import WireError
from federation.plan import ModelSpec, Plan, PublicationSettings, SecureSettings, TrainingConfig, live_incompatibility
from federation.protocol import topics
from federation.protocol.chunks import ChunkAssembly, chunk_count, chunk_range
from federation.protocol.messages import (
    MESSAGE_BYTES,
    NO_BYTES_SHA256,
    Acknowledgement,
    Announcement,
    BlobPointer,
    DeviceStatus,
    Invitation,
    UpdateManifest,
    VersionScore,
    read,
    write,
)

INSTANCE = "0" * 32
POINTER = BlobPointer(sha256="a" * 64, size=10, url="/v1/blobs/" + "a" * 64)
PLAN = Plan(
    labels=("sit", "walk"),
    model=ModelSpec(name="har_cnn"),
    method={"name": "fedavg"},
    training=TrainingConfig(classes=2),
)


def manifest(**changes: object) -> UpdateManifest:
    fields: dict[str, object] = {
        "update_id": "r1-a-0123",
        "federation": "demo",
        "instance": INSTANCE,
        "client": "a",
        "round": 1,
        "method": "fedavg",
        "base_version": "0" * 64,
        "examples": 10,
        "steps": 3,
        "size": 5000,
        "sha256": "f" * 64,
        "chunk_bytes": 1024,
        "nonce": "12345678",
        "created": 0.0,
    }
    return UpdateManifest.model_validate({**fields, **changes})


def test_protocol_needs_no_torch() -> None:
    code = (
        "import sys, federation.protocol.messages, federation.protocol.chunks, federation.protocol.topics; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "message",
    [
        manifest(),
        Announcement(federation="demo", instance=INSTANCE, state="collecting", round=1, plan=PLAN, created=1.0),
        Invitation(instance=INSTANCE, round=1, model=POINTER),
        DeviceStatus(state="ready", examples=3),
        Acknowledgement(update_id="x", status="send", next_chunk=4),
    ],
)
def test_messages_survive_bytes(message: object) -> None:
    assert read(type(message), write(message)) == message


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "not a valid DeviceStatus"),
        (b"\xff\xfe", "not a valid DeviceStatus"),
        (b'{"state": "sleeping"}', "state: Input should be"),
        (b'{"state": "ready", "more": 1}', "more: Extra inputs"),
        (b'{"state": "ready", "examples": -1}', "examples: Input should be greater"),
        (b" " * 300_000, "262,144 are read"),
    ],
)
def test_bad_messages_are_explained(payload: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read(DeviceStatus, payload)


@pytest.mark.parametrize("change", [{"size": 1 << 40}, {"update_id": "../x"}, {"client": "a/b"}, {"sha256": "F" * 64}])
def test_a_manifest_is_bounded(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        manifest(**change)


def test_metrics_that_are_no_numbers_are_left_out_at_both_ends() -> None:
    measured = {"loss": 0.5, "macro_f1_after": float("nan"), "worst": float("inf")}
    assert DeviceStatus(state="ready", metrics=measured).metrics == {"loss": 0.5}
    said = write(manifest(metrics={"loss": 0.5, "f1": 0.25})).replace(b"0.25", b"NaN")
    assert read(UpdateManifest, said).metrics == {"loss": 0.5}


def test_an_announcement_is_as_large_for_a_million_devices_as_for_two() -> None:
    small, large = (
        Announcement(
            federation="demo", instance=INSTANCE, state="collecting", round=1, invited=n, plan=PLAN, created=1.0
        )
        for n in (2, 1_000_000)
    )
    assert len(write(large)) - len(write(small)) == 6  # digits
    assert len(write(large)) < MESSAGE_BYTES // 2


@given(st.binary(max_size=200))
def test_any_payload_is_an_error_or_a_message(payload: bytes) -> None:
    for kind in (DeviceStatus, Acknowledgement, UpdateManifest, Announcement, Invitation):
        with contextlib.suppress(WireError):
            read(kind, payload)


def test_topics_round_trip() -> None:
    assert topics.parse(topics.status("demo", "a")) == topics.DeviceTopic("demo", "a", "status")
    assert topics.parse(topics.update("demo", "a", "u1", "begin")) == ("demo", "a", "begin", "u1", -1)
    assert topics.parse(topics.update("demo", "a", "u1", "chunk", 12)) == ("demo", "a", "chunk", "u1", 12)
    assert topics.announce("demo") == "gaitway/v1/demo/announce"
    assert topics.invitation("demo", "a") == "gaitway/v1/demo/devices/a/invitation"
    assert topics.ack("demo", "a") == "gaitway/v1/demo/devices/a/ack"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "gaitway/v1/demo/announce",
        "gaitway/v2/demo/devices/a/status",
        "gaitway/v1/demo/devices/a/update/u/chunk/-1",
        "gaitway/v1/demo/devices/a/update/u/chunk/99999999",
        "gaitway/v1/demo/devices/a/update/u/chunk/1/2",
        "gaitway/v1/demo/devices/../status",
        "gaitway/v1/de mo/devices/a/status",
    ],
)
def test_foreign_topics_are_refused(topic: str) -> None:
    with pytest.raises(WireError, match="is not one of the protocol's"):
        topics.parse(topic)


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a" * 65, "..", "ä"])
def test_names_that_would_break_a_topic_are_refused(name: str) -> None:
    with pytest.raises(WireError, match="may contain only letters"):
        topics.status("demo", name)


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, 700), st.integers(1, 100), st.randoms())
def test_chunks_in_any_order_and_twice_make_the_whole(size: int, chunk: int, random: object) -> None:
    data = bytes(i % 251 for i in range(size))
    assembly, result = ChunkAssembly(size, chunk), bytearray(size)
    order = list(range(chunk_count(size, chunk))) * 2
    random.shuffle(order)
    for n in order:
        assert (assembly.first_missing is None) == assembly.complete
        part = data[chunk_range(size, chunk, n)]
        place = assembly.offset(n, len(part))
        result[place : place + len(part)] = part
        assembly.add(n)
    assert assembly.complete
    assert bytes(result) == data


@pytest.mark.parametrize(("n", "length"), [(-1, 10), (3, 5), (0, 9), (2, 10), (2, 0)])
def test_chunks_that_do_not_fit_are_refused(n: int, length: int) -> None:
    with pytest.raises(WireError, match="chunk"):
        ChunkAssembly(25, 10).offset(n, length)


@pytest.mark.parametrize(("devices", "working"), [(1, 2), (0, 0), (3, -1)])
def test_a_score_by_more_devices_than_there_are_is_refused(devices: int, working: int) -> None:
    text = f'{{"value": 5, "trivial": 1, "devices": {devices}, "working": {working}, "measured": "version"}}'
    with pytest.raises(WireError, match="VersionScore"):
        read(VersionScore, text.encode())


DEFAULT = VersionScore(value=810_000, trivial=210_000, devices=4, working=3, measured="updates")


def test_a_score_names_its_metric_where_it_is_the_default_too() -> None:
    said = json.loads(write(DEFAULT))
    assert said == {
        "metric": "macro_f1",
        "value": 810_000,
        "trivial": 210_000,
        "devices": 4,
        "working": 3,
        "measured": "updates",
    }
    del said["metric"]
    assert read(VersionScore, json.dumps(said).encode()) == DEFAULT


def test_scores_of_other_tasks_name_their_metric() -> None:
    score = VersionScore(metric="mse", value=2_500_000, trivial=4_000_000, devices=1, working=1, measured="version")
    assert read(VersionScore, write(score)) == score
    assert json.loads(write(score))["metric"] == "mse"
    assert "mean squared error 2.500 on their holdouts against 4.000 of answering each channel's mean" in score.words


@pytest.mark.parametrize("change", [{"value": 2_000_000}, {"macro_f1": 1}, {"most_frequent": 1}, {"metric": "a b"}])
def test_a_score_that_is_none_is_refused(change: dict[str, object]) -> None:
    values = {"metric": "mean_iou", "value": 1, "trivial": 1, "devices": 1, "working": 1, "measured": "version"}
    with pytest.raises(WireError, match="not a valid VersionScore"):
        read(VersionScore, json.dumps(values | change).encode())


WITHDRAWAL = {"withdraw": True, "sequence": 7, "examples": 0, "steps": 0, "size": 0, "sha256": NO_BYTES_SHA256}


def test_what_a_continuous_federation_adds_is_left_out_of_other_messages() -> None:
    """Devices and servers of a version without it refuse unknown keys."""
    announced = Announcement(federation="demo", instance=INSTANCE, state="waiting", round=1, plan=PLAN, created=1.0)
    said = json.loads(write(announced))
    assert not {"continuous", "feature_model"} & set(said)
    assert not {"publication", "secure"} & set(said["plan"])
    assert not {"sequence", "withdraw"} & set(json.loads(write(manifest())))


GAINS = {"personalized": (1, 5000, 2500, 1, -5000, 0, 0), "midway": (1, -120, -3, 0, 0, 1, 7)}


def test_gains_survive_bytes_and_are_left_out_where_there_are_none() -> None:
    for sent in (manifest(gains=GAINS), POINTER.model_copy(update={"gains": GAINS})):
        assert read(type(sent), write(sent)) == sent
    assert b"gains" not in write(manifest()) + write(POINTER)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ({"Personalized": (1, 0, 0)}, "pattern"),
        ({"__proto__": (1, 0, 0)}, "pattern"),
        ({f"model_{letter}": (1, 0, 0) for letter in "abcdefghi"}, "at most 8"),
        ({"midway": (1, 0)}, "at least 3"),
        ({"midway": (1, 0, 0, 0)}, "got 4 numbers"),
        ({"midway": (1, 0, 0) + (1, 0) * 101}, "at most 203"),
        ({"midway": (0, 0, 0)}, "gains of 0 devices"),
        ({"midway": (2, 0, 0)}, "gains of 2 devices"),
        ({"midway": (-1, 0, 0)}, "gains of -1 devices"),
        ({"midway": (1, 5001, 0)}, "don't add up"),
        ({"midway": (1, -5001, 0)}, "don't add up"),
        ({"midway": (1, 0, 2501)}, "don't add up"),
        ({"midway": (1, 0, -2501)}, "don't add up"),
        ({"midway": (1, 0, 0, 2, 0)}, "2 of 1 devices"),
        ({"midway": (1, 0, 0, -1, 0)}, "-1 of 1 devices"),
        ({"midway": (1, 0, 0, 0, 1)}, "from 0 of 1 devices"),
        ({"midway": (1, 0, 0, 1, 5001)}, "5001"),
        ({"midway": (1, 0.5, 0)}, "integer"),
        ({"midway": (1, 10**40, 0)}, "less than or equal"),
    ],
)
def test_gains_that_no_device_can_report_are_refused(gains: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        manifest(gains=gains)


@pytest.mark.parametrize("sums", [(2, 10001, 0), (2, 0, -5001), (2**31, 0, 0), (3, 0, 0, 4, 0), (3, 0, 0, 1, -5001)])
def test_sums_that_no_reports_add_up_to_are_refused(sums: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="devices"):
        BlobPointer.model_validate({**POINTER.model_dump(), "gains": {"midway": sums}})


def test_the_largest_gains_fit_into_an_announcement() -> None:
    most, names = 2**31 - 1, [f"{'candidate_' * 3}{letter}" for letter in "abcdefgh"]
    sums = (most, -most * 5000, -most * 2500) + (most, -most * 5000) * 100
    pointer = POINTER.model_copy(update={"gains": dict.fromkeys(names, sums)})
    assert 3 * len(write(BlobPointer.model_validate(pointer.model_dump()))) < MESSAGE_BYTES / 2


def test_a_server_refuses_sums_that_hide_nothing() -> None:
    """Else an operator who asked for secure sums would be sent every update."""
    for mode in ("off", "masked"):
        assert live_incompatibility(PLAN.model_copy(update={"secure": SecureSettings(mode=mode)})) is None
    clear = PLAN.model_copy(update={"secure": SecureSettings(mode="clear")})
    assert "hides nothing" in (live_incompatibility(clear) or "")


def test_a_continuous_announcement_and_its_updates_survive_bytes() -> None:
    plan = PLAN.model_copy(update={"publication": PublicationSettings(min_changes=3)})
    announced = Announcement(
        federation="demo", instance=INSTANCE, state="collecting", round=4, plan=plan, created=1.0, continuous=True,
        feature_model=POINTER,
    )  # fmt: skip
    assert read(Announcement, write(announced)) == announced
    for sent in (manifest(sequence=(1 << 53) - 1), manifest(**WITHDRAWAL)):
        assert read(UpdateManifest, write(sent)) == sent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"examples": 0}, "at least 1, unless it says withdraw"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": 1 << 53}, "sequence"),
        ({**WITHDRAWAL, "sequence": None}, "no sequence came"),
        ({**WITHDRAWAL, "examples": 1}, "examples = 1"),
        ({**WITHDRAWAL, "steps": 2}, "steps = 2"),
        ({**WITHDRAWAL, "size": 5}, "size = 5"),
        ({**WITHDRAWAL, "sha256": "f" * 64}, "sha256 of no bytes"),
        ({**WITHDRAWAL, "gains": GAINS}, "no gains"),
        ({"sum": "keys", "examples": 0, "steps": 0, "gains": GAINS}, "gains"),
    ],
)
def test_a_withdrawal_holds_nothing_and_another_update_something(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        manifest(**change)
