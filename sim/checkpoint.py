"""Everything that a run needs to go on, in one file that is either the old one or the new one.

A head (magic, where the index begins, its sha256), a block for the server's state and for each client, the index:
JSON with each block's place and sha256. Blocks are written and read one by one, so that memory holds one client.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from federation import wire
from federation.errors import WireError
from federation.records import Client, Tree
from federation.tree import map_tree
from sim.errors import RunDirectoryError
from sim.on_demand import Mapped

HEAD = struct.Struct("<8sQ32s")
MAGIC = b"gaitway2"


class Checkpoint(NamedTuple):
    """The state after a round; clients may be read from the disk when they are asked for."""

    round_number: int
    state: Tree
    clients: Mapping[str, Client]  # those that have trained
    best: Mapping[str, Client]  # client models of the best round
    same: frozenset[str]  # those of `best` that are the present ones
    progress: dict[str, Any]  # JSON: best round and score, confusion matrices, seconds


class _Block(NamedTuple):
    """Where a tree lies in the file."""

    offset: int
    size: int
    sha256: str


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a kill at any moment leaves the previous checkpoint or this one."""
    with written_whole(path) as file:
        file.write(bytes(HEAD.size))
        clients = {name: _append(file, _to_tree(client)) for name, client in checkpoint.clients.items()}
        best = {
            name: clients[name] if name in checkpoint.same else _append(file, _to_tree(checkpoint.best[name]))
            for name in checkpoint.best
        }
        blocks = {"state": _append(file, checkpoint.state), "clients": clients, "best": best}
        index = json.dumps({**checkpoint.progress, "round_number": checkpoint.round_number, "blocks": blocks}).encode()
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
        if index is None:
            return _earlier(path, device)
        blocks = index.pop("blocks")
        clients, best = (_places(blocks[part]) for part in ("clients", "best"))
        state = _read(path, _Block(*blocks["state"]), device)
        number = index.pop("round_number")
    except (WireError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise _damaged(path, error) from error
    same = frozenset(name for name, block in best.items() if clients.get(name) == block)

    def reading(places: Mapping[str, _Block]) -> Mapping[str, Client]:
        return Mapped(places, lambda name: _to_client(_read(path, places[name], device)))

    return Checkpoint(number, state, reading(clients), reading(best), same, index)


def in_order(tree: Tree, like: Tree) -> Tree:
    """Return the tree with its keys in the order of `like`, and those that only the tree has after them.

    The wire sorts names; sums over parameters keep the model's order, so that a resumed run rounds as a whole one does.
    """
    keys = [*(key for key in like if key in tree), *(key for key in tree if key not in like)]
    return {key: in_order(tree[key], like.get(key, {})) if isinstance(tree[key], dict) else tree[key] for key in keys}


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a neighbour, flush it to the disk, and rename."""
    with written_whole(path) as file:
        file.write(data)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a neighbour for writing; flush it to the disk and rename it if nothing was raised."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _append(file: BinaryIO, tree: Tree) -> _Block:
    data, offset = wire.encode(tree), file.tell()
    file.write(data)
    return _Block(offset, len(data), wire.digest(data))


def _index(path: Path) -> dict[str, Any] | None:
    """Return the index, or None for a file of the earlier version."""
    with path.open("rb") as file:
        magic, begin, digest = HEAD.unpack(file.read(HEAD.size))
        if magic != MAGIC:
            return None
        file.seek(begin)
        data = file.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("the sha256 of its index is not the one in its head")
    index: dict[str, Any] = json.loads(data)
    return index


def _earlier(path: Path, device: str) -> Checkpoint:
    """Read a checkpoint of the earlier version, which was one block with everything in it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if wire.digest(body) != header.pop("sha256"):
        raise WireError("its sha256 is not the one in its header")
    tree = map_tree(lambda value: value.to(device), wire.decode(body, limit_bytes=len(body)))
    clients, best = ({n: _to_client(c) for n, c in tree.get(part, {}).items()} for part in ("clients", "best"))
    same = frozenset(header.pop("same"))
    best |= {name: clients[name] for name in same}
    return Checkpoint(header.pop("round_number"), tree.get("state", {}), clients, best, same, header)


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
