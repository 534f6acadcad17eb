"""The network that this device has from a federation that trains one: a further candidate beside the heads.

Another agent of the same device takes part there, with a data folder of its own; its model in use is copied beside the
heads of a job, and compared with them on the same windows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from edge_agent.errors import AgentError, StoreError
from edge_agent.serving.model_registry import NETWORK, ModelRegistry
from edge_agent.storage.files import write_file
from edge_agent.storage.state_store import FILE_NAME, StateStore
from edge_agent.training.job import CHECKPOINT, MODEL, PARITY
from export.runtime import ExportError, Session


def add_network(heads: Path, folder: Path, labels: Sequence[str], threads: int) -> str:
    """Copy the model in use of the agent in `folder` beside the heads of a job; says why not, empty if it was.

    labels: of the heads; a network that answers others, or in another order, is not compared with them.
    """
    try:
        _copy(heads / NETWORK, folder, labels, threads)
    except (AgentError, ExportError, OSError, ValueError, KeyError) as error:
        shutil.rmtree(heads / NETWORK, ignore_errors=True)
        return f"no network of {folder} is compared: {error}"
    return ""


def _copy(target: Path, folder: Path, labels: Sequence[str], threads: int) -> None:
    if not (folder / FILE_NAME).is_file():
        raise StoreError("no agent has worked there yet")
    with closing(StateStore(folder)) as store:
        model = ModelRegistry(store).present()
    if model is None or "head" in model:
        raise StoreError("it uses no network yet")
    session = Session.load(Path(model["path"]), threads=threads)
    if list(session.metadata.labels) != list(labels):
        raise StoreError(f"it answers {', '.join(session.metadata.labels)}, and not {', '.join(labels)}")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model["path"], target / MODEL)
    shutil.copyfile(model["checkpoint"], target / CHECKPOINT)
    write_file(target / PARITY, json.dumps({**model["parity"], "round": model["round"]}).encode())
