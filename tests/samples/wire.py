"""What travels: signed messages, topics, a method's broadcast, and an upload in each precision."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from federation import wire
from federation.method import empty_training_stats
from federation.methods import METHODS, method_to_json
from federation.protocol import messages, signing
from federation.protocol.signing import fingerprint
from federation.records import Tree
from federation.records.tree import flatten, unflatten
from federation.wire import uploads
from sim.run import resolve
from tests.samples.messages import (
    DEVICE_KEY,
    FEDERATION,
    SERVER_KEY,
    left_unset,
    public_bytes,
    samples,
    topic_names,
)
from tests.sim.small_runs import settings_for

UPLOADS: dict[str, tuple[messages.Precision, messages.Compression]] = {
    "lossless.zst": ("lossless", "zstd"),
    "float16.zst": ("float16", "zstd"),
    "int8": ("int8", "none"),
}
"""By the end of the file's name."""


def write(out: Path) -> None:
    """Write `messages/`, topics.json, methods.json and `tensors/`."""
    from tests.samples.make import dump

    (out / "messages").mkdir()
    unset: dict[type, set[str]] = {}
    for sample in samples().values():
        names = set(left_unset(sample.message))
        unset[type(sample.message)] = unset.get(type(sample.message), names) & names
    if never := {kind.__name__: sorted(names) for kind, names in unset.items() if names}:
        raise ValueError(f"these fields are not set, so nothing would notice their loss: {never}")
    for name, sample in samples().items():
        body = messages.write(sample.message)
        if sample.kind is not None:
            key = DEVICE_KEY if sample.kind is signing.Kind.UPDATE else SERVER_KEY
            body = signing.wrap(sample.kind, FEDERATION, sample.device, body, key.sign)
        (out / "messages" / name).write_bytes(body)
    keys = {"server": SERVER_KEY, "device": DEVICE_KEY}
    dump(out / "messages" / "keys.json", {who: public_bytes(key.public_key()).hex() for who, key in keys.items()})
    token = f"gwe_AbCdEf_{fingerprint(public_bytes(SERVER_KEY.public_key()))}"
    dump(out / "topics.json", {"topics": topic_names(), "token": token})
    dump(out / "methods.json", {name: method_to_json(method()) for name, method in METHODS.items()})
    _write_tensors(out / "tensors")


def _write_tensors(folder: Path) -> None:
    from tests.samples.make import dump

    folder.mkdir()
    broadcast, upload = trees()
    (folder / "broadcast").write_bytes(wire.encode(broadcast))
    digests = {}
    for name, (precision, compression) in UPLOADS.items():
        data = uploads.encode(upload, reference(broadcast), {}, precision=precision, compression=compression).data
        (folder / f"upload.{name}").write_bytes(data)
        digests[name] = digest_of(decoded(folder, name, (broadcast, upload)))
    dump(folder / "digests.json", digests)


def trees() -> tuple[Tree, Tree]:
    """Return what FedAli sends to a tiny network and what comes back; made up but for names and shapes."""
    settings = settings_for("fedali")
    (network,) = resolve(settings).networks
    method, training, client = network.setup.method, network.setup.training, network.initial
    state = method.server_init(client.params, client.buffers, training)
    broadcast = method.broadcast(state, "")
    received, round_state = method.receive(client, broadcast)
    stats = empty_training_stats(method, training, next(iter(client.params.values())))
    _, upload = method.upload(received, round_state, stats)
    return _filled(broadcast, 1), _filled(upload, 2)


def _filled(tree: Tree, seed: int) -> Tree:
    """Replace the numbers by others that do not depend on a generator."""
    flat = flatten(tree)
    for k, (name, value) in enumerate(flat.items()):
        if value.dtype == torch.float32:
            steps = torch.arange(value.numel(), dtype=torch.float64)
            flat[name] = ((steps * (2 * k + seed)) % 101 / 128 - 0.375).float().reshape(value.shape)
    return unflatten(flat)


def reference(broadcast: Tree) -> Tree:
    """Return what int8 uploads of FedAli are changes from."""
    return {"params": broadcast["params"]}


def decoded(folder: Path, name: str, today: tuple[Tree, Tree]) -> Tree:
    """Read an upload of the sample as today's method expects it."""
    precision, compression = UPLOADS[name]
    broadcast = wire.decode((folder / "broadcast").read_bytes(), limit_bytes=1 << 20)
    return uploads.decode(
        (folder / f"upload.{name}").read_bytes(),
        uploads_schema(today[1]),
        lambda: reference(broadcast),
        precision=precision,
        compression=compression,
    )


def uploads_schema(upload: Tree) -> Any:
    """Return the schema of an upload."""
    from federation.wire.schema import schema_of

    return schema_of(upload)


def digest_of(tree: Tree) -> str:
    """Return a digest of names, shapes and numbers, whatever the order and the wire format."""
    found = hashlib.sha256()
    for name, value in sorted(flatten(tree).items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()
