"""What one message costs the server, counted and not timed: statements, transactions, rows; and what it shares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine, event

from aggregator_api.core.errors import BlobError
from aggregator_api.http.queries import listings
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import CHUNK_BYTES, BlobCache, in_pieces
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import DeviceRow
from federation.aggregation.screening import change_norms
from federation.errors import UpdateError
from federation.methods import METHODS
from federation.wire.schema import check_tree, schema_of
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan

ENOUGH = 20
"""Devices of a federation whose round waits for one more."""


class Work:
    """What was asked of a database."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.commits = 0

    @property
    def writes(self) -> list[str]:
        """The statements that change rows."""
        return [one for one in self.statements if one.split()[0] in ("INSERT", "UPDATE", "DELETE")]


@contextmanager
def counted(engine: Engine) -> Iterator[Work]:
    """Count the statements and the commits of this thread; readers commit nothing."""
    work, mine = Work(), threading.get_ident()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if threading.get_ident() == mine and not statement.startswith(("BEGIN", "SELECT pg_advisory")):
            work.statements.append(statement)

    def committed(_connection: Any) -> None:
        work.commits += threading.get_ident() == mine

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", committed)
    try:
        yield work
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "commit", committed)


def cost(bench: Bench, action: Callable[[], object]) -> Work:
    """Count what an action costs on the thread that takes messages."""

    def measured() -> Work:
        with counted(bench.runtime.database.engine) as work:
            action()
        return work

    return bench.as_inbox(measured)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, tiny_plan(clients=None, minimum_clients=ENOUGH))
    for n in range(ENOUGH):
        found.say(f"d{n:02}", "ready")
    yield found
    found.runtime.stop()


def test_an_update_costs_one_transaction_and_a_bounded_number_of_statements(bench: Bench) -> None:
    assert bench.upload(bench.update_of("d01")).status == "accepted"  # the first one reads what is usual in the round
    parcel = bench.update_of("d00")
    work = cost(bench, lambda: bench.upload(parcel))
    assert bench.last("d00").status == "accepted"
    assert work.commits == 1
    # the journal, the update, its metrics, their scores, the round, the participation
    assert len(work.writes) == 6, work.writes
    # and four looks: when it begins, ends, and is written, and for accesses that have ended
    assert len(work.statements) <= 10, work.statements


def test_a_device_that_says_what_it_does_in_an_open_round_costs_one_transaction(bench: Bench) -> None:
    work = cost(bench, lambda: bench.say("d00", "training"))
    assert work.commits == 1
    assert len(work.statements) <= 6, work.statements


def test_a_device_that_joins_a_round_to_be_costs_one_transaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(clients=None, minimum_clients=ENOUGH))
    bench.say("d00", "ready")
    work = cost(bench, lambda: bench.say("d01", "ready"))
    assert work.commits == 1
    assert len(work.statements) <= 9, work.statements
    bench.runtime.stop()


def test_a_device_that_becomes_ready_after_a_round_has_ended_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(rounds=2, clients=None, minimum_clients=1))
    bench.say("d00", "ready")
    bench.say("d00", "offline")
    bench.runtime.coordinator.stop_awaiting(FEDERATION, "d00", 1)  # the round fails: nobody is awaited any more
    assert bench.now().state == "waiting"
    bench.say("d00", "ready")
    assert (bench.now().state, bench.now().round) == ("collecting", 2)
    bench.runtime.stop()


def test_a_federation_and_its_round_are_described_without_reading_their_devices(bench: Bench) -> None:
    read: list[DeviceRow] = []

    def loaded(row: DeviceRow, _context: Any) -> None:
        read.append(row)

    event.listen(DeviceRow, "load", loaded)
    try:
        with bench.runtime.database.read() as session:
            row = repositories.find_federation(session, FEDERATION)
            assert row is not None
            assert listings.federation(session, row).devices_online == ENOUGH
            opened = repositories.open_round(session, row)
            assert opened is not None
            assert listings.round_detail(session, opened).invited == ENOUGH
    finally:
        event.remove(DeviceRow, "load", loaded)
    assert not read


def test_the_thread_that_checks_updates_computes_alone_whatever_others_set(tmp_path: Path) -> None:
    bench = Bench(tmp_path, torch_threads=2)
    found: list[int] = []
    asked = threading.Event()

    def ask() -> None:
        setter = threading.Thread(target=torch.set_num_threads, args=(2,))
        setter.start()
        setter.join()
        found.append(torch.get_num_threads())
        asked.set()

    bench.runtime.inbox.put(ask)
    assert asked.wait(60)
    bench.runtime.stop()
    torch.set_num_threads(1)
    assert found == [1]


def test_a_hot_blob_is_read_once_and_those_asked_for_last_are_kept(tmp_path: Path) -> None:
    store = BlobStore(tmp_path.as_uri())
    names = [store.put(bytes([n]) * 100).sha256 for n in range(3)]
    hot = BlobCache(store, largest=100, total=250)
    first = hot.get(names[0])
    assert hot.get(names[0]) is first
    assert [hot.get(name) for name in names] == [bytes([n]) * 100 for n in range(3)]
    assert hot.get(names[2]) is hot.get(names[2])
    assert hot.get(names[0]) is not first  # two of them are all that may be kept
    assert hot.get(store.put(b"x" * 101).sha256) is None


def test_a_damaged_blob_does_not_become_hot(tmp_path: Path) -> None:
    store = BlobStore(tmp_path.as_uri())
    name = store.put(b"whole").sha256
    (tmp_path / name[:2] / name).write_bytes(b"holes")
    with pytest.raises(BlobError, match="damaged"):
        BlobCache(store).get(name)


async def _all(data: bytes) -> list[bytes]:
    return [piece async for piece in in_pieces(data)]


def test_a_hot_blob_goes_out_in_small_pieces() -> None:
    import asyncio

    data = bytes(range(256)) * 1000
    pieces = asyncio.run(_all(data))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= CHUNK_BYTES
    assert asyncio.run(_all(b"")) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_finite_numbers_are_finite_and_infinities_that_cancel_are_not(dtype: torch.dtype) -> None:
    largest = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    schema = schema_of({"a": largest})
    check_tree({"a": largest}, schema)  # their sum is infinite
    for bad in ([torch.inf, -torch.inf, 0, 0], [torch.nan, 0, 0, 0], [torch.inf, 0, 0, 0]):
        with pytest.raises(UpdateError, match="NaN or infinity"):
            check_tree({"a": torch.tensor(bad, dtype=dtype)}, schema)


def test_measuring_an_update_of_float64_does_not_change_it() -> None:
    upload = {"params": {"w": torch.tensor([4.0, 5.0], dtype=torch.float64)}}
    start = {"params": {"w": torch.tensor([1.0, 1.0])}}
    assert change_norms(upload, start, METHODS["fedavg"].upload_groups) == {"params": 5.0}
    assert upload["params"]["w"].tolist() == [4.0, 5.0]
