"""The wire as targets: trees of tensors, JSON messages, topics and chunks."""

from __future__ import annotations

import json
import random
from collections import Counter

from federation import wire
from federation.errors import UpdateError, WireError
from federation.protocol import topics
from federation.protocol.chunks import ChunkAssembly
from federation.protocol.messages import Compression, read
from federation.wire import uploads
from federation.wire.schema import check_tree, schema_of
from tests.fuzzing.mutants import bytes_of, json_of, value_of
from tests.fuzzing.valid import ENCODED, LIMIT, MESSAGES, NARROW, ORIGIN, PACKED, SCHEMA, UPLOAD_SCHEMA

TREES = (*ENCODED, *NARROW)
KINDS = tuple(kind for kind, _ in MESSAGES)


class Stateless:
    """A target of which nothing stays from one case to the next."""

    def __init__(self, _folder: object = None) -> None:
        self.outcomes = Counter[str]()

    def begin(self, rng: random.Random) -> None:
        """There is nothing to begin with."""

    def close(self) -> dict[str, int]:
        """Return what came of the cases."""
        return dict(self.outcomes)


class Trees(Stateless):
    """Bytes as a tree: one within the limit, or WireError; the first byte of a case says how it is compressed."""

    def draw(self, rng: random.Random) -> bytes:
        """Change an encoded tree in its bytes, or in what its header says."""
        data, how = rng.choice(TREES)
        if how == "none" and rng.random() < 0.4:
            data = _with_header(rng, data)
        else:
            data = bytes_of(rng, data, tuple(other for other, _ in TREES))
        lie = rng.random() < 0.05
        return (b"z" if (how == "zstd") != lie else b"n") + data

    def feed(self, case: bytes) -> None:
        """Decode it, and compare it with the schema."""
        try:
            tree = wire.decode(case[1:], limit_bytes=LIMIT, compression="zstd" if case[:1] == b"z" else "none")
        except WireError:
            self.outcomes["refused by decode"] += 1
            return
        assert wire.tensor_bytes(tree) <= 2 * LIMIT  # float16 comes back twice as wide
        try:
            check_tree(tree, SCHEMA)
        except UpdateError:
            self.outcomes["refused by the schema"] += 1
            return
        self.outcomes["taken"] += 1
        assert schema_of(tree) == SCHEMA


class UploadSender(Stateless):
    """Bytes as an int8 upload: exactly the schema's tensors, all finite, or WireError or UpdateError."""

    def draw(self, rng: random.Random) -> bytes:
        """Change a packed upload in its bytes, in its header, or in the numbers alone."""
        data, how = rng.choice(PACKED)
        if how == "zstd":
            return b"z" + bytes_of(rng, data, tuple(other for other, _ in PACKED))
        if rng.random() < 0.4:
            return b"n" + _with_header(rng, data)
        begin = 8 + int.from_bytes(data[:8], "little") if rng.random() < 0.5 else 0
        changed = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(begin, len(data))] = rng.randrange(256)
        return b"n" + bytes(changed)

    def feed(self, case: bytes) -> None:
        """Decode it as the server does."""
        how: Compression = "zstd" if case[:1] == b"z" else "none"
        try:
            tree = uploads.decode(case[1:], UPLOAD_SCHEMA, lambda: ORIGIN, precision="int8", compression=how)
        except (WireError, UpdateError) as error:
            self.outcomes[type(error).__name__] += 1
            return
        self.outcomes["taken"] += 1
        check_tree(tree, UPLOAD_SCHEMA)


def _with_header(rng: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json_of(rng, json.loads(data[8 : 8 + size]))
    header += b" " * (-len(header) % 8) if rng.random() < 0.5 else b""
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


class Messages(Stateless):
    """JSON as a message: a valid one of its kind, or WireError; the first byte of a case says which kind."""

    def draw(self, rng: random.Random) -> bytes:
        """Change a valid message."""
        which = rng.randrange(len(MESSAGES))
        return bytes((which,)) + json_of(rng, MESSAGES[which][1])

    def feed(self, case: bytes) -> None:
        """Read it."""
        kind = KINDS[case[0]]
        try:
            message = read(kind, case[1:])
        except WireError:
            self.outcomes["refused"] += 1
            return
        self.outcomes["taken"] += 1
        assert isinstance(message, kind)


class TopicsAndChunks(Stateless):
    """A device's topic and the place of its chunk: safe names and a place inside the update, or WireError."""

    def draw(self, rng: random.Random) -> bytes:
        """Change a valid topic, and draw the sizes of an update and of a chunk."""
        words = topics.update("walk", "a", "r1-a", "chunk", rng.randrange(60)).split("/")
        if rng.random() < 0.7:
            changed = value_of(rng, words)
            words = [str(word)[:100] for word in changed] if isinstance(changed, list) else [str(changed)[:1000]]
        topic = "/".join(words).encode(errors="replace")
        if rng.random() < 0.3:
            topic = bytes_of(rng, topic)
        size, chunk = (
            rng.choice((rng.randrange(60_000), rng.getrandbits(33))),
            rng.choice((1024, rng.randint(1024, 1 << 20))),
        )
        length = rng.choice((chunk, size % chunk, rng.randrange(1 << 21)))
        return json.dumps([size, chunk, length]).encode() + topic

    def feed(self, case: bytes) -> None:
        """Parse the topic, and place the chunk."""
        sizes, _, text = case.partition(b"]")
        size, chunk_bytes, length = json.loads(sizes + b"]")
        try:
            found = topics.parse(text.decode(errors="replace"))
        except WireError:
            self.outcomes["refused topics"] += 1
            return
        for name in (found.federation, found.device, *filter(None, [found.update_id])):
            assert not set(name) & set("/+#\0 ")
            assert name.strip(".")
        assembly = ChunkAssembly(size, chunk_bytes)
        try:
            offset = assembly.offset(found.chunk, length)
        except WireError:
            self.outcomes["refused chunks"] += 1
            return
        self.outcomes["taken"] += 1
        assert 0 <= offset <= offset + length <= size
        assembly.add(found.chunk)
        assert len(assembly.received) * chunk_bytes < size + chunk_bytes
