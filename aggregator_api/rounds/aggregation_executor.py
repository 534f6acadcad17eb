"""Runs a round's heavy tensor work in this process, or in a worker that gets the names of blobs.

A worker is a process of its own (`python -m aggregator_api.rounds.aggregation_worker`), so that the server answers
while it computes, and so that what kills it (memory, above all) does not kill the server. Jobs and results are one
line of JSON each: plans, manifests and the sha256 of blobs; the tensors stay in the blob store.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from aggregator_api.core.errors import ServerStoppingError, WorkerDiedError, WorkFailedError
from aggregator_api.devices.contributions import Contributed
from aggregator_api.rounds.aggregation import Aggregate, StoredUpdate, add_up, aggregate, publish, read_state
from aggregator_api.rounds.secure_rounds import Summed
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import write_broadcasts
from aggregator_api.storage.db.models import Blob
from federation.errors import ImpossibleSumError
from gaitway.files import UMASK

log = logging.getLogger(__name__)

STOPPING = "the server stops; it does this again at its next start"


class AggregationExecutor(Protocol):
    """Does the heavy work of a round; one job at a time, each may be done again.

    Every job raises ServerStoppingError once `close` was called, which another thread may do in the middle of it.
    """

    def aggregate(
        self, contract: Contract, state: str, updates: Sequence[StoredUpdate], *, is_newest: bool
    ) -> Aggregate:
        """Combine updates with the state in the blob `state`, which is that of the newest version or not."""

    def add_up(self, contract: Contract, state: str, summed: Summed) -> Aggregate:
        """Make the state after that in the blob `state` of a sum of updates."""

    def publish(self, contract: Contract, state: str, contributed: Contributed) -> Aggregate:
        """Make the state of a continuous federation after that in the blob `state`."""

    def broadcasts(self, contract: Contract, state: str, cohort: Sequence[str]) -> dict[str, Blob]:
        """Write what each client of a cohort gets."""

    def close(self) -> None:
        """End what was started without waiting for its result."""


class _JobBlobs(BlobStore):
    """The server's blobs as jobs in this process see them: the first one they touch after `close` ends them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.closed = threading.Event()

    def put(self, data: bytes) -> Blob:
        """Store bytes, unless the server stops."""
        self._require_open()
        return super().put(data)

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield a blob in pieces, unless the server stops."""
        self._require_open()
        return super().pieces(sha256)

    def _require_open(self) -> None:
        if self.closed.is_set():
            raise ServerStoppingError(STOPPING)


class InProcessExecutor:
    """Does the work in the calling thread."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = _JobBlobs(blobs.url)

    def aggregate(
        self, contract: Contract, state: str, updates: Sequence[StoredUpdate], *, is_newest: bool
    ) -> Aggregate:
        """Combine updates with the state in the blob `state`, which is that of the newest version or not."""
        return aggregate(contract, self._blobs, state, updates, is_newest=is_newest)

    def add_up(self, contract: Contract, state: str, summed: Summed) -> Aggregate:
        """Make the state after that in the blob `state` of a sum of updates."""
        return add_up(contract, self._blobs, state, summed)

    def publish(self, contract: Contract, state: str, contributed: Contributed) -> Aggregate:
        """Make the state of a continuous federation after that in the blob `state`."""
        return publish(contract, self._blobs, state, contributed)

    def broadcasts(self, contract: Contract, state: str, cohort: Sequence[str]) -> dict[str, Blob]:
        """Write what each client of a cohort gets."""
        return write_broadcasts(contract.method, self._blobs, read_state(self._blobs, state), cohort)

    def close(self) -> None:
        """Let the job at hand end with its next blob."""
        self._blobs.closed.set()


class WorkerProcessExecutor:
    """Hands the work to a worker, which is started with the first job; one that died is started again."""

    def __init__(self, blob_url: str, *, torch_threads: int, attempts: int, command: Sequence[str] = ()) -> None:
        self._setting = {"blobs": blob_url, "torch_threads": torch_threads}
        self._attempts = attempts
        self._command = list(command or (sys.executable, "-m", "aggregator_api.rounds.aggregation_worker"))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._starting, self._working = threading.Lock(), threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._process.pid if self._process else None

    def aggregate(
        self, contract: Contract, state: str, updates: Sequence[StoredUpdate], *, is_newest: bool
    ) -> Aggregate:
        """Combine updates with the state in the blob `state`, which is that of the newest version or not.

        Raises:
            WorkFailedError: if the method cannot combine them.
            WorkerDiedError: if the worker has died over the job too often.
        """
        stored = [{**update._asdict(), "manifest": update.manifest.model_dump(mode="json")} for update in updates]
        return Aggregate.from_json(self._ask("aggregate", contract, state, {"updates": stored, "is_newest": is_newest}))

    def add_up(self, contract: Contract, state: str, summed: Summed) -> Aggregate:
        """Make the state after that in the blob `state` of a sum of updates.

        Raises:
            ImpossibleSumError: if the devices cannot have added up to it.
            WorkFailedError, WorkerDiedError: as `aggregate`.
        """
        return Aggregate.from_json(self._ask("add_up", contract, state, {"summed": summed.to_json()}))

    def publish(self, contract: Contract, state: str, contributed: Contributed) -> Aggregate:
        """Make the state of a continuous federation after that in the blob `state`; raises as `aggregate`."""
        return Aggregate.from_json(self._ask("publish", contract, state, {"contributed": contributed}))

    def broadcasts(self, contract: Contract, state: str, cohort: Sequence[str]) -> dict[str, Blob]:
        """Write what each client of a cohort gets; raises as `aggregate` does."""
        done = self._ask("broadcasts", contract, state, {"cohort": list(cohort)})
        return {client: Blob(*blob) for client, blob in done["broadcasts"].items()}

    def close(self) -> None:
        """Kill the worker, which holds nothing that is not in a blob."""
        with self._starting:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
        with self._working:
            self._forget_process()

    def _ask(self, kind: str, contract: Contract, state: str, more: dict[str, Any]) -> dict[str, Any]:
        job = {"kind": kind, "contract": contract.to_json(), "state": state, **more, **self._setting}
        line = json.dumps(job).encode() + b"\n"
        with self._working:
            return self._repeated(line)

    def _repeated(self, line: bytes) -> dict[str, Any]:
        """Return the worker's answer; one that dies is started again."""
        for attempt in range(1, self._attempts + 1):
            answer = self._once(line)
            if answer is not None:
                if "impossible" in answer:
                    raise ImpossibleSumError(answer["impossible"])
                if "error" in answer:
                    raise WorkFailedError(answer["error"])
                return answer
            if self._is_closed:
                raise ServerStoppingError(STOPPING)
            log.error("aggregation worker died attempt=%d attempts=%d", attempt, self._attempts)
        raise WorkerDiedError(f"the worker process died {self._attempts} times over it; is there enough memory?")

    def _once(self, line: bytes) -> dict[str, Any] | None:
        """Return the worker's answer; None if it died."""
        process = self._started()
        answer = _asked(process, line) if process is not None else b""
        if answer.endswith(b"\n"):
            result: dict[str, Any] = json.loads(answer)
            return result
        self._forget_process()
        return None

    def _started(self) -> subprocess.Popen[bytes] | None:
        """Return the worker; None once the server stops."""
        with self._starting:
            if self._is_closed:
                return None
            self._process = self._process or subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, umask=UMASK
            )
            return self._process

    def _forget_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            _reap(self._process)
            self._process = None


def _asked(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    if process.stdin is None or process.stdout is None:
        return b""
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:  # it died before it had read the job
        return b""


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was written to it and never read
                log.debug("the dead worker's pipe was not empty")
