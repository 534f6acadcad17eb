"""Everything that a run needs to go on, in one file that is either the old one or the new one.

A head (magic, where the index begins, its sha256), a block for the server's state and for each client, the index:
JSON with each block's place and sha256. Blocks are written and read one by one, so that memory holds one client.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from federation import wire
from federation.errors import WireError
from federation.records import Client, Tree
from federation.records.tree import map_tree
from gaitway.files import written_whole
from sim.engines.client_store import LazyMapping
from sim.errors import RunDirectoryError

HEAD = struct.Struct("<8sQ32s")
MAGIC = b"gaitway3"


class Checkpoint(NamedTuple):
    """The state after a round; clients may be read from the disk when they are asked for.

    `client_sets` are the clients that have trained, by name: `clients` as they are now, `best` and `validated` as they
    were in the rounds chosen by test and by validation. `same` says which clients of a set lie in an earlier set.
    """

    round_number: int
    state: Tree
    client_sets: Mapping[str, Mapping[str, Client]]
    same: Mapping[str, Mapping[str, str]]
    progress: dict[str, Any]  # JSON: chosen rounds and their scores, confusion matrices, seconds
    contributions: Mapping[str, Tree] = MappingProxyType({})  # what each client has in a continuous method's sums


class _Block(NamedTuple):
    """Where a tree lies in the file."""

    offset: int
    size: int
    sha256: str


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a crash at any moment leaves the previous one or this one, and what it left goes."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink(missing_ok=True)
    with written_whole(path) as file:
        file.write(bytes(HEAD.size))
        client_sets: dict[str, dict[str, _Block]] = {}
        for client_set, clients in checkpoint.client_sets.items():
            same = checkpoint.same[client_set]
            client_sets[client_set] = {
                name: client_sets[same[name]][name] if name in same else _append(file, _to_tree(clients[name]))
                for name in clients
            }
        blocks = {"state": _append(file, checkpoint.state), "clients": client_sets}
        if checkpoint.contributions:
            blocks["contributions"] = _append(file, dict(checkpoint.contributions))
        number = {"round_number": checkpoint.round_number, "same": checkpoint.same}
        index = json.dumps({**checkpoint.progress, **number, "blocks": blocks}).encode()
        begin = file.tell()
        file.write(index)
        file.seek(0)
        file.write(HEAD.pack(MAGIC, begin, hashlib.sha256(index).digest()))


def load(path: Path, device: str) -> Checkpoint | None:
    """Read a checkpoint, or None where there is none yet; its clients are read from the file one by one.

    Raises:
        RunDirectoryError: if the file is damaged; of a client, when it is asked for.
    """
    if not path.exists():
        return None
    try:
        index = _index(path)
        blocks = index.pop("blocks")
        client_sets = {client_set: _places(clients) for client_set, clients in blocks["clients"].items()}
        state = _read(path, _Block(*blocks["state"]), device)
        kept = _read(path, _Block(*blocks["contributions"]), device) if "contributions" in blocks else {}
        number, same = index.pop("round_number"), index.pop("same")
    except (WireError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _damaged(path, error) from error

    def reading(places: Mapping[str, _Block]) -> Mapping[str, Client]:
        return LazyMapping(places, lambda name: _to_client(_read(path, places[name], device)))

    sets = {client_set: reading(places) for client_set, places in client_sets.items()}
    return Checkpoint(number, state, sets, same, index, kept)


def _append(file: BinaryIO, tree: Tree) -> _Block:
    data, offset = wire.encode(tree), file.tell()
    file.write(data)
    return _Block(offset, len(data), wire.digest(data))


def _index(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        magic, begin, digest = HEAD.unpack(file.read(HEAD.size))
        if magic != MAGIC:
            raise ValueError("it does not begin as a checkpoint of this version does")
        file.seek(begin)
        data = file.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("the sha256 of its index is not the one in its head")
    index: dict[str, Any] = json.loads(data)
    return index


def _places(blocks: Mapping[str, Any]) -> dict[str, _Block]:
    return {name: _Block(*block) for name, block in blocks.items()}


def _read(path: Path, block: _Block, device: str) -> Tree:
    with path.open("rb") as file:
        file.seek(block.offset)
        data = file.read(block.size)
    if wire.digest(data) != block.sha256:
        raise _damaged(path, "the sha256 of a part is not the one in its index")
    try:
        tree: Tree = map_tree(lambda value: value.to(device), wire.decode(data, limit_bytes=len(data)))
    except WireError as error:
        raise _damaged(path, error) from error
    return tree


def _damaged(path: Path, why: object) -> RunDirectoryError:
    return RunDirectoryError(f"{path} is damaged ({why}); delete it to begin the run again")


def _to_tree(client: Client) -> Tree:
    return dict(client._asdict())


def _to_client(parts: Tree) -> Client:
    return Client(parts["params"], parts.get("buffers", {}), parts.get("memory", {}))
