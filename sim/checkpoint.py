"""Everything that a run needs to go on, in one file that is either the old one or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from federation import wire
from federation.errors import WireError
from federation.records import Client, Tree
from federation.tree import map_tree
from sim.errors import RunDirectoryError


class Checkpoint(NamedTuple):
    """The state after a round."""

    round_number: int
    state: Tree
    clients: dict[str, Client]  # those that have trained
    best: dict[str, Client]  # client models of the best round
    progress: dict[str, Any]  # JSON: best round and score, confusion matrices, seconds


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write atomically: a kill at any moment leaves the previous checkpoint or this one."""
    same = {name for name, client in checkpoint.best.items() if checkpoint.clients.get(name) is client}
    tree = {
        "state": checkpoint.state,
        "clients": _to_tree(checkpoint.clients),
        "best": _to_tree({n: c for n, c in checkpoint.best.items() if n not in same}),
    }
    header = {**checkpoint.progress, "round_number": checkpoint.round_number, "same": sorted(same)}
    body = wire.encode(tree)
    head = json.dumps({**header, "sha256": wire.digest(body)}).encode()
    write_atomically(path, len(head).to_bytes(8, "little") + head + body)


def load(path: Path, device: str) -> Checkpoint | None:
    """Read a checkpoint, or None where there is none yet.

    Raises:
        RunDirectoryError: if the file is damaged.
    """
    if not path.exists():
        return None
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        body = data[8 + length :]
        if wire.digest(body) != header.pop("sha256"):
            raise WireError("its sha256 is not the one in its header")
        tree = map_tree(lambda value: value.to(device), wire.decode(body, limit_bytes=len(body)))
    except (WireError, ValueError, KeyError, AttributeError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); delete it to begin the run again") from error
    clients = _from_tree(tree.get("clients", {}))
    best = {**_from_tree(tree.get("best", {})), **{name: clients[name] for name in header.pop("same")}}
    return Checkpoint(header.pop("round_number"), tree.get("state", {}), clients, best, header)


def in_order(tree: Tree, like: Tree) -> Tree:
    """Return the tree with its keys in the order of `like`, and those that only the tree has after them.

    The wire sorts names; sums over parameters keep the model's order, so that a resumed run rounds as a whole one does.
    """
    keys = [*(key for key in like if key in tree), *(key for key in tree if key not in like)]
    return {key: in_order(tree[key], like.get(key, {})) if isinstance(tree[key], dict) else tree[key] for key in keys}


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a neighbour, flush it to the disk, and rename."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _to_tree(clients: dict[str, Client]) -> Tree:
    return {name: dict(client._asdict()) for name, client in clients.items()}


def _from_tree(tree: Tree) -> dict[str, Client]:
    return {
        name: Client(parts["params"], parts.get("buffers", {}), parts.get("memory", {})) for name, parts in tree.items()
    }
