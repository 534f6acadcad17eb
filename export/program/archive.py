"""A program as one file: a ZIP archive of `manifest.json` and a file of ONNX for each graph; without torch.

The same plan and versions give the same bytes, so the file can be named by its digest. What comes from outside is
bounded before it is unpacked, and checked before ONNX Runtime sees it.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ValidationError

from export.program.errors import ProgramError
from export.program.graph_check import check_graph
from export.program.manifest import Manifest
from gaitway.errors import first_problem

MANIFEST = "manifest.json"
MAX_FILE_BYTES = 128 << 20
MAX_MANIFEST_BYTES = 16 << 20
MAX_UNPACKED_BYTES = 256 << 20
MAX_FILES = 32
MAX_VALUE_BYTES = 1 << 30
"""Of a graph's inputs and outputs together: ten times what the largest network of ours has."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ProgramFile(NamedTuple):
    """A program that was checked: its manifest, and its graphs' bytes by name."""

    manifest: Manifest
    graphs: Mapping[str, bytes]


def write_program(manifest: Manifest, graphs: Mapping[str, bytes]) -> bytes:
    """Return the archive of a manifest and the graphs whose files it names."""
    text = manifest.model_dump_json(exclude_defaults=False).encode()
    files = {MANIFEST: text} | {entry.file: graphs[name] for name, entry in manifest.graphs.items() if entry.file}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def read_program(data: bytes) -> ProgramFile:
    """Read and check an archive.

    Raises:
        ProgramError: if it is too large, not an archive, or holds anything but what a program has.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProgramError(f"a program of {len(data):,} bytes; expected at most {MAX_FILE_BYTES:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _unpacked(archive)
        manifest = Manifest.model_validate_json(files.pop(MANIFEST))
    except ValidationError as error:
        raise ProgramError(f"the program's {MANIFEST} is not one: {first_problem(error)}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError) as error:  # of encryption, too
        raise ProgramError(f"{len(data):,} bytes came that are not a program's archive: {error}") from None
    _check_sizes(manifest)
    named = {entry.file: (name, entry) for name, entry in manifest.graphs.items() if entry.file}
    if set(named) != set(files):
        raise ProgramError(f"the archive has the files {sorted(files)}; its manifest names {sorted(named)}")
    graphs = {}
    for file, (name, entry) in named.items():
        if hashlib.sha256(files[file]).hexdigest() != entry.sha256:
            raise ProgramError(f"the graph {name} is damaged: its sha256 is not the manifest's")
        if check_graph(files[file]).nodes != entry.nodes:
            raise ProgramError(f"the graph {name} has other nodes than the manifest says")
        graphs[name] = files[file]
    return ProgramFile(manifest, graphs)


def _check_sizes(manifest: Manifest) -> None:
    """Refuse what declares more numbers than a device has room for, before any of them is made."""
    sizes = {name: sum(kind.nbytes for kind in (*entry.inputs.values(), *entry.outputs.values()))
             for name, entry in manifest.graphs.items()}  # fmt: skip
    rows = max(manifest.statistics_batch, manifest.evaluation_batch)
    sizes["a batch"] = rows * manifest.x.nbytes // max(1, manifest.x.shape[0] if manifest.x.shape else 1)
    sizes["the client"] = sum(kind.nbytes for kind in manifest.client.values())
    sizes["the optimizer"] = max(
        (sum(k.nbytes for k in phase.momenta.values()) for phase in manifest.phases), default=0
    )
    for what, size in sizes.items():
        if size > MAX_VALUE_BYTES:
            raise ProgramError(
                f"{what} of the program has {size:,} bytes of numbers; expected at most {MAX_VALUE_BYTES:,}"
            )


def _unpacked(archive: zipfile.ZipFile) -> dict[str, bytes]:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > MAX_FILES or len(set(names)) < len(names) or MANIFEST not in names:
        raise ProgramError(f"an archive of {len(infos)} files; expected {MANIFEST} and at most {MAX_FILES - 1} graphs")
    if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise ProgramError(f"the program's {MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes")
    if any(info.compress_type not in _COMPRESSIONS for info in infos):
        raise ProgramError("a file of the program is compressed by another method than deflate")
    # a reader stops at the size that was declared
    if sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise ProgramError(f"the program unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
    return {info.filename: archive.read(info) for info in infos}
