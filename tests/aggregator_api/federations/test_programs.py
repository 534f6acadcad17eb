"""The program of a federation: a row first, made in the background, announced, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_api.federations import programs
from aggregator_api.federations.service import NewFederation
from aggregator_api.rounds.announcements import announcement
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import FederationRow
from federation.plan import SecureSettings
from federation.protocol.messages import BlobPointer
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.continuous import continuous_plan
from tests.aggregator_api.generated_devices import tiny_plan

NAME = "walk"


def row_of(bench: Bench, name: str = NAME) -> FederationRow:
    with bench.runtime.database.read() as session:
        found = repositories.find_federation(session, name)
        assert found is not None
        session.expunge(found)
        return found


def announced(bench: Bench) -> BlobPointer | None:
    with bench.runtime.database.read() as session:
        row = repositories.find_federation(session, NAME)
        assert row is not None
        return announcement(session, row, chunk_bytes=4096).program


def finish(bench: Bench) -> None:
    """Wait until what was begun is done."""
    bench.runtime.programs.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.runtime.programs.is_on = True
    return found


def test_a_program_is_made_kept_and_announced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "export_program", lambda plan, is_over: (b"program", ""))
    bench.runtime.federations.create(NewFederation(name=NAME, plan=tiny_plan()))
    finish(bench)
    pointer = announced(bench)
    assert pointer is not None
    assert (row_of(bench).program_state, row_of(bench).program_note) == ("ready", "")
    assert bench.runtime.blobs.read(pointer.sha256) == b"program"
    with bench.runtime.database.read() as session:
        assert repositories.is_broadcast(session, pointer.sha256, NAME)  # devices may fetch it
    garbage_collection.collect(bench.runtime.database, bench.runtime.blobs, grace_s=-1e9)
    assert bench.runtime.blobs.read(pointer.sha256) == b"program"
    bench.stop()


def test_what_cannot_be_made_is_said_and_the_federation_works(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "export_program", lambda plan, is_over: (b"", "the graph has aten.strange"))
    bench.runtime.federations.create(NewFederation(name=NAME, plan=tiny_plan()))
    finish(bench)
    row = row_of(bench)
    assert (row.program_state, row.program_note, row.status) == ("failed", "the graph has aten.strange", "running")
    assert announced(bench) is None
    bench.stop()


def test_a_method_that_has_none_and_a_server_that_makes_none_say_why(bench: Bench) -> None:
    assert bench.runtime.programs.first_state(continuous_plan())[0] == "none"
    assert "analytic" in bench.runtime.programs.first_state(continuous_plan())[1]
    secure = tiny_plan().model_copy(update={"secure": SecureSettings(mode="masked")})
    # phones train with it; boards without torch wait
    assert bench.runtime.programs.first_state(secure) == ("making", "")
    bench.runtime.programs.is_on = False
    bench.runtime.federations.create(NewFederation(name=NAME, plan=tiny_plan()))
    assert (row_of(bench).program_state, "setting `programs`" in row_of(bench).program_note) == ("none", True)
    bench.stop()


def test_what_an_earlier_run_had_begun_is_made_at_the_next_start(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.ProgramMaker, "begin", lambda self, name: None)  # killed before it began
    bench.runtime.federations.create(NewFederation(name=NAME, plan=tiny_plan()))
    assert (row_of(bench).program_state, announced(bench)) == ("making", None)
    monkeypatch.undo()
    monkeypatch.setattr(programs, "export_program", lambda plan, is_over: (b"program", ""))
    bench.runtime.programs.resume()
    finish(bench)
    assert row_of(bench).program_state == "ready"
    bench.stop()


@pytest.mark.parametrize(
    ("method", "secure", "takes"),
    [
        ({"name": "fedavg"}, "off", True),
        ({"name": "fesem"}, "off", True),
        ({"name": "fedavg"}, "masked", True),
        ({"name": "fedali", "clustering": "one_step"}, "masked", True),
        ({"name": "fesem", "clustering": "one_step"}, "masked", False),
        ({"name": "feddyn"}, "masked", False),  # of a package: the phone has no summand of it
    ],
)
def test_phones_are_let_in_where_they_can_add_their_part(method: dict[str, str], secure: str, takes: bool) -> None:
    """As `ineligibleReason` of the phone answers: tests/live/test_private_phone_rounds.py has one in such a sum."""
    plan = tiny_plan().model_dump(mode="json") | {"method": method, "secure": {"mode": secure}}
    assert programs.takes_phones(FederationRow(plan=plan, program_state=programs.READY)) == takes
    assert not programs.takes_phones(FederationRow(plan=plan, program_state=programs.NONE))


@pytest.mark.ci
def test_a_plan_that_no_program_can_be_made_of_is_refused_in_words() -> None:
    plan = tiny_plan()
    augmented = plan.training.model_copy(update={"feature_dim": 3})
    data, reason = programs.export_program(plan.model_copy(update={"training": augmented}), lambda: False)
    assert data == b""
    assert "feature_dim" in reason
