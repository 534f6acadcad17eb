"""The wire against bytes that nobody meant: each either gives a tree or a message within its bounds, or is refused.

hypothesis draws each case from its strategies and makes one that fails as simple as it can: a few hundred of them by
default. `tests/fuzzing` plays a million.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation import wire
from federation.errors import UpdateError, WireError
from federation.protocol import signing, topics
from federation.protocol.chunks import ChunkAssembly
from federation.protocol.messages import read
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of
from tests.fuzzing.valid import ENCODED, LIMIT, MESSAGES, ORIGIN, PACKED, SCHEMA, UPLOAD_SCHEMA

Case = Callable[..., None]
BATCH = 5_000  # hypothesis remembers what it has tried

extreme = st.sampled_from([0, -1, 1 << 31, 1 << 63, (1 << 64) - 1, 10**30, 1e308, float("nan"), float("inf"), "", None])
leaf = extreme | st.text(max_size=80) | st.integers() | st.floats() | st.booleans()
anything = st.recursive(
    leaf, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4)
)


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Change, insert, cut out, repeat or cut off some bytes of what was valid."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["set", "insert", "cut", "repeat", "end", "length"])):
            case "set":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "cut":
                del data[at : at + draw(st.integers(1, 64))]
            case "repeat":
                data[at:at] = data[at : at + 64]
            case "end":
                del data[at:]
            case "length":  # a header of safetensors begins with its length
                data[:8] = draw(st.integers(0, (1 << 64) - 1)).to_bytes(8, "little")
    return bytes(data)


@st.composite
def lying_headers(draw: st.DrawFn) -> bytes:
    """Write safetensors whose header claims what it likes of shapes, dtypes and places."""
    number = st.integers(-2, 20) | st.sampled_from([1 << 31, 1 << 62, 1 << 64])
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F64", "F16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "?"]),
            "shape": st.lists(number, max_size=4),
            "data_offsets": st.lists(number, min_size=2, max_size=2),
        }
    )
    names = st.text(max_size=8) | st.sampled_from(["a", "a/b", "../../etc", "__metadata__", "a%2Fb", "/"])
    header = json.dumps(draw(st.dictionaries(names, entry | anything, max_size=4))).encode()
    return len(header).to_bytes(8, "little") + header + draw(st.binary(max_size=64))


def any_bytes_as_a_tree(data: st.DataObject) -> None:
    """A tree within the limit, or WireError; what is not of the schema is refused."""
    valid, how = data.draw(st.sampled_from(ENCODED))
    came = data.draw(st.one_of(damaged(valid), lying_headers(), st.binary(max_size=200)))
    try:
        tree = wire.decode(came, limit_bytes=LIMIT, compression=data.draw(st.sampled_from(["none", how])))
    except WireError:
        return
    assert wire.tensor_bytes(tree) <= 2 * LIMIT  # float16 comes back twice as wide
    try:
        check_tree(tree, SCHEMA)
    except UpdateError:
        return
    assert schema_of(tree) == SCHEMA


def any_bytes_as_an_int8_upload(data: st.DataObject) -> None:
    """Exactly the schema's tensors, all finite, or an error that says what came."""
    valid, how = data.draw(st.sampled_from(PACKED))
    came = data.draw(st.one_of(damaged(valid), lying_headers(), st.binary(max_size=200)))
    try:
        tree = uploads.decode(came, UPLOAD_SCHEMA, lambda: ORIGIN, precision="int8", compression=how)
    except (WireError, UpdateError):
        return
    check_tree(tree, UPLOAD_SCHEMA)


def any_json_as_a_message(data: st.DataObject) -> None:
    """A valid message, or WireError."""
    kind, valid = data.draw(st.sampled_from(MESSAGES))
    changed = dict(valid)
    for _ in range(data.draw(st.integers(0, 3))):
        name = data.draw(st.sampled_from([*valid, "more"]))
        changed[name] = data.draw(anything)
    payload = json.dumps(changed).encode()
    if data.draw(st.booleans()):
        payload = data.draw(damaged(payload))
    try:
        message = read(kind, payload)
    except WireError:
        return
    assert isinstance(message, kind)


def any_text_as_a_topic(text: str, data: st.DataObject) -> None:
    """A device's topic whose names are safe for a file system and a broker, or WireError."""
    words = ["gaitway", "v1", "walk", "devices", "a", "update", "u", "chunk", "7", "..", "+", "#", "", text]
    topic = data.draw(st.just(text) | st.lists(st.sampled_from(words), max_size=9).map("/".join))
    try:
        found = topics.parse(topic)
    except WireError:
        return
    for name in (found.federation, found.device, *filter(None, [found.update_id])):
        assert not set(name) & set("/+#\0 ")
        assert name.strip(".")


def any_chunks(size: int, chunk_bytes: int, chunks: list[tuple[int, int]]) -> None:
    """A place inside the update, or WireError."""
    assembly = ChunkAssembly(size, chunk_bytes)
    for n, length in chunks:
        try:
            offset = assembly.offset(n, length)
        except WireError:
            continue
        assert 0 <= offset <= offset + length <= size
        assembly.add(n)
    assert len(assembly.received) * chunk_bytes < size + chunk_bytes


TARGETS: dict[Case, Callable[[Case], Case]] = {
    any_bytes_as_a_tree: given(st.data()),
    any_bytes_as_an_int8_upload: given(st.data()),
    any_json_as_a_message: given(st.data()),
    any_text_as_a_topic: given(
        st.text(max_size=120) | st.lists(st.text(max_size=70), max_size=10).map("/".join), st.data()
    ),
    any_chunks: given(
        st.integers(0, 10**7), st.integers(1024, 1 << 20), st.lists(st.tuples(st.integers(), st.integers(0, 1 << 21)))
    ),
}
"""What each case is drawn from."""


def play(case: Case, count: int, seed: int) -> None:
    """Play so many cases, drawn from the seed."""
    calm = settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    hypothesis.seed(seed)(calm(TARGETS[case](case)))()


@pytest.mark.parametrize("case", TARGETS, ids=lambda case: case.__name__)
def test_some_cases(case: Case) -> None:
    play(case, 80, 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", TARGETS, ids=lambda case: case.__name__)
def test_many_cases(case: Case) -> None:
    play(case, BATCH, 1)


# ---- the signed form

BODY = b'{"schema_version": 1}\n{"second": "line"}'
SIGNED = signing.wrap(signing.Kind.ANNOUNCEMENT, "f", "", BODY, lambda data: hashlib.sha512(data).digest())
envelopes = st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: signing.MARK + tail) | damaged(SIGNED)


@given(envelopes)
def test_bytes_are_taken_for_a_signed_message_with_its_whole_body_or_refused(payload: bytes) -> None:
    try:
        found = signing.unwrap(payload)
    except WireError:
        assert payload.startswith(signing.MARK)
        return
    if found.signature is None:
        assert found.body == payload
    else:
        assert len(found.signature) == signing.SIGNATURE_BYTES
        again = signing.wrap(signing.Kind.ACKNOWLEDGEMENT, "f", "d", found.body, lambda _: found.signature or b"")
        assert signing.unwrap(again) == found
        assert payload.endswith(b"\n" + found.body)


@given(st.sampled_from(signing.Kind), st.binary(max_size=300))
def test_what_was_signed_comes_out_as_it_went_in(kind: signing.Kind, body: bytes) -> None:
    signature = hashlib.sha512(body).digest()
    assert signing.unwrap(signing.wrap(kind, "f", "d", body, lambda _: signature)) == (body, signature)


@given(st.text(max_size=120))
def test_any_text_may_be_asked_for_the_key_that_a_token_names(text: str) -> None:
    named = signing.pinned_key(text)
    assert named == "" or (text.startswith("gwe_") and text.endswith("_" + named) and len(named) == 32)
