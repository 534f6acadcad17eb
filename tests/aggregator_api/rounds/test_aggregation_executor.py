"""The worker process: it makes what this process would, and its death costs an attempt, a round at the worst."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from aggregator_api.core.errors import WorkerDiedError, WorkFailedError
from aggregator_api.core.settings import Settings
from aggregator_api.rounds.aggregation import PREFETCH, StoredUpdate, aggregate, prefetch
from aggregator_api.rounds.aggregation_executor import InProcessExecutor, WorkerProcessExecutor
from aggregator_api.rounds.aggregation_worker import serve
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db.models import Blob, RoundRow
from federation import wire
from federation.methods import method_from_json
from federation.methods.fedavg import FedAvg
from federation.protocol.messages import UpdateManifest
from federation.records import Tree, Update
from federation.wire.schema import schema_of
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import tiny_plan


class Case:
    """A state, updates and a contract in a folder."""

    def __init__(self, folder: Path, method: str = "fedavg") -> None:
        self.blobs = BlobStore(folder.as_uri())
        trees = {name: {"params": {"w": torch.randn(64, generator=_seeded(name))}} for name in ("s", *"abc")}
        stored = {name: self.blobs.put(wire.encode(tree)) for name, tree in trees.items()}
        plan = tiny_plan(method=method)
        self.contract = Contract(plan, method_from_json(plan.method), schema_of(trees["s"]))
        self.state = stored.pop("s").sha256
        self.updates = [StoredUpdate(manifest(name, *blob), 0) for name, blob in stored.items()]


def _seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(ord(name))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def worker(case: Case) -> Iterator[WorkerProcessExecutor]:
    """One real worker for the module: it takes seconds to start."""
    found = WorkerProcessExecutor(url_of(case), torch_threads=1, attempts=2)
    yield found
    found.close()


def url_of(case: Case) -> str:
    return Path(case.blobs.root).as_uri()


@pytest.mark.ci
@pytest.mark.service
def test_a_worker_makes_what_this_process_makes_and_stays(case: Case, worker: WorkerProcessExecutor) -> None:
    here = InProcessExecutor(case.blobs)
    assert worker.aggregate(case.contract, case.state, case.updates, is_newest=True) == here.aggregate(
        case.contract, case.state, case.updates, is_newest=True
    )
    first = worker.pid
    given = worker.broadcasts(case.contract, case.state, ["a", "b"])
    assert given == here.broadcasts(case.contract, case.state, ["a", "b"])
    assert worker.pid == first


@pytest.mark.slow
@pytest.mark.service
def test_a_killed_worker_is_started_again_and_the_job_repeated(case: Case, worker: WorkerProcessExecutor) -> None:
    expected = worker.aggregate(case.contract, case.state, case.updates, is_newest=True)
    killed = worker.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    assert worker.aggregate(case.contract, case.state, case.updates, is_newest=True) == expected
    assert worker.pid != killed


@pytest.mark.ci
@pytest.mark.service
def test_what_goes_wrong_in_a_worker_is_said_and_ends_nothing(case: Case, worker: WorkerProcessExecutor) -> None:
    with pytest.raises(WorkFailedError, match="is not in the store"):
        worker.aggregate(case.contract, "0" * 64, case.updates, is_newest=True)
    first = worker.pid
    worker.aggregate(case.contract, case.state, case.updates, is_newest=True)
    assert worker.pid == first


DIES = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.stdout.write('{\"state\"')")
"""A worker that dies in the middle of its answer."""


def test_a_worker_that_dies_each_time_is_given_up(case: Case) -> None:
    worker = WorkerProcessExecutor(url_of(case), torch_threads=1, attempts=2, command=DIES)
    with pytest.raises(WorkerDiedError, match="died 2 times"):
        worker.aggregate(case.contract, case.state, case.updates, is_newest=True)
    assert worker.pid is None
    worker.close()


def test_a_round_whose_worker_dies_each_time_fails_with_the_reason_and_the_next_one_opens(
    tmp_path: Path,
) -> None:
    blobs = Settings(data_dir=tmp_path).blobs
    failing = WorkerProcessExecutor(blobs, torch_threads=1, attempts=2, command=DIES)
    bench = Bench(tmp_path, tiny_plan(rounds=2), executor=failing)
    for device in "ab":
        bench.say(device, "ready")
    for device in "ab":
        assert bench.upload(bench.update_of(device)).status == "accepted"
    wait_for(lambda: (bench.now().round, bench.now().state) == (2, "collecting"))
    with bench.runtime.database.read() as session:
        reason = session.scalars(select(RoundRow.reason).where(RoundRow.number == 1)).one()
    assert reason.startswith("aggregation failed: the worker process died 2 times over it")
    bench.runtime.stop()


def test_the_worker_answers_every_line(case: Case) -> None:
    answers = io.BytesIO()
    job = {
        "kind": "broadcasts", "contract": case.contract.to_json(), "state": case.state, "cohort": ["a"],
        "blobs": url_of(case), "torch_threads": torch.get_num_threads(),
    }  # fmt: skip
    serve([b"no JSON\n", json.dumps({**job, "state": "x"}).encode(), json.dumps(job).encode()], answers)
    first, second, third = (json.loads(line) for line in answers.getvalue().splitlines())
    assert first["error"].startswith("JSONDecodeError")
    assert second["error"].startswith("BlobError: 'x' is not a sha256")
    assert Blob(*third["broadcasts"]["a"]) == Blob(case.state, case.blobs.size(case.state))


def test_reading_ahead_keeps_the_order_and_its_bound() -> None:
    read: list[int] = []

    def note(n: int) -> int:
        read.append(n)
        return n

    seen = []
    for n in prefetch(range(9), note):
        seen.append(n)
        assert len(read) <= len(seen) + PREFETCH
    assert seen == list(range(9))


def test_reading_ahead_passes_an_error_on() -> None:
    things = prefetch([1, 0, 2], lambda n: 1 // n)
    assert next(things) == 1
    with pytest.raises(ZeroDivisionError):
        next(things)


@pytest.mark.ci  # seconds in which a process loads torch
@pytest.mark.service
def test_a_worker_whose_server_was_killed_ends_without_a_word() -> None:
    """It was at work, and nobody is there to read its answer: not its own mistake, so no traceback."""
    command = [sys.executable, "-m", "aggregator_api.rounds.aggregation_worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdout.close()
        worker.stdin.write(b"{}\n")
        worker.stdin.close()
        assert worker.stderr.read() == b""
        assert worker.wait() == 0


class Witness(FedAvg):
    """Remembers what it was given."""

    seen: list[tuple[str, float]]

    def aggregate(self, state: Tree, updates: Iterable[Update]) -> Tree:
        """Note clients and discounts."""
        object.__setattr__(self, "seen", [(update.client_id, update.discount) for update in updates])
        return state


def test_updates_come_sorted_by_client_and_late_ones_discounted(tmp_path: Path) -> None:
    tree = {"params": {"w": torch.ones(2)}}
    blobs, method = BlobStore(tmp_path.as_uri()), Witness()
    blob = blobs.put(wire.encode(tree))
    stored = [
        StoredUpdate(manifest(name, blob.sha256, blob.size), late) for name, late in (("b", 0), ("c", 3), ("a", 1))
    ]
    contract = Contract(tiny_plan(), method, schema_of(tree))
    result = aggregate(contract, blobs, blob.sha256, stored, is_newest=True)
    assert method.seen == [("a", 2**-0.5), ("b", 1.0), ("c", 0.5)]
    assert result.state == blob


def manifest(client: str, sha256: str, size: int) -> UpdateManifest:
    """Describe an update in a blob."""
    said = {
        "update_id": client, "instance": "0" * 32, "federation": "walk", "client": client, "round": 1,
        "method": "fedavg", "base_version": sha256, "examples": 1, "steps": 1, "size": size, "sha256": sha256,
        "chunk_bytes": 1024, "nonce": "01234567", "created": 0.0,
    }  # fmt: skip
    return UpdateManifest.model_validate(said)
