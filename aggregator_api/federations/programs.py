"""A federation's program for devices without torch, made in the background once the federation exists.

The row records first that a program is being made, so a server that stops meanwhile makes it at its next start. If it
can't be made, the reason is stored, and the federation works for all other devices.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import select

from aggregator_api.operations.leadership import Leadership
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.database import Database
from aggregator_api.storage.db.models import Blob, FederationRow
from federation.methods import method_from_json
from federation.plan import Plan
from federation.secure_sums.live import phone_sum_groups
from gaitway.logs import about
from gaitway.tasks import DEFAULT_TASK, task_of

log = logging.getLogger(__name__)

TIMEOUT_S = 900.0
MAX_BYTES = 128 << 20
NEEDS = ("onnx", "onnxruntime")
MAKING, READY, NONE, FAILED = "making", "ready", "none", "failed"
POLL_S = 0.2
NICE = 10


class ProgramMaker:
    """Makes programs one after the other, each in a process of its own that gives way to others."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        leadership: Leadership,
        announce: Callable[[str], None],
        closing: threading.Event,
        *,
        is_on: bool,
    ) -> None:
        self._database, self._blobs, self._leadership = database, blobs, leadership
        self._announce, self._closing = announce, closing
        self.is_on = is_on
        self._pool = ThreadPoolExecutor(1, "programs")

    def first_state(self, plan: Plan) -> tuple[str, str]:
        """Say what a new federation's row is to hold: that one is being made, or why there is none."""
        if not self.is_on:
            return NONE, "this server makes no programs (its setting `programs`)"
        if missing := [name for name in NEEDS if find_spec(name) is None]:
            return NONE, f"the server lacks {' and '.join(missing)}: its operator can install the extra 'export'"
        if reason := method_from_json(plan.method).program_incompatibility:
            return NONE, reason
        if plan.training.example_clip_norm is not None:
            return NONE, "the plan clips gradients by example (training.example_clip_norm), and programs have a batch's"
        return MAKING, ""

    def begin(self, name: str) -> None:
        """Make the program of a federation whose row asks for it; returns at once."""
        if self._leadership.leads(name):
            self._pool.submit(self._guard, name)

    def resume(self) -> None:
        """Make what an earlier run of the server had begun."""
        with self._database.read() as session:
            waiting = select(FederationRow.name).where(FederationRow.program_state == MAKING).order_by(FederationRow.id)
            names = list(session.scalars(waiting))
        for name in names:
            self.begin(name)

    def close(self) -> None:
        """Begin no other; the one that is being made is given up, and made at the next start."""
        self._pool.shutdown(cancel_futures=True)

    def _guard(self, name: str) -> None:
        try:
            self._make(name)
        except Exception:  # the federation works without, and the next start tries again
            log.exception("the program cannot be made", extra=about(federation=name))

    def _make(self, name: str) -> None:
        with self._database.read() as session:
            row = repositories.find_federation(session, name)
            if row is None or row.program_state != MAKING:
                return
            instance, plan = row.instance, row.parsed_plan
        data, reason = export_program(plan, self._closing.is_set)
        if self._closing.is_set():
            return
        blob = self._blobs.put(data) if data else None
        with self._database.write() as session:
            row = repositories.find_federation(session, name)
            if row is None or row.instance != instance:
                return  # deleted, or founded anew meanwhile
            _note(row, blob, reason)
            kind = "program.made" if blob else "program.failed"
            detail = f"program {blob.sha256[:12]}, {blob.size:,} bytes" if blob else reason
            repositories.journal(session, row, kind, detail=detail)
        if reason:
            log.warning("no program for devices without torch: %s", reason, extra=about(federation=name))
        self._announce(name)


def takes_phones(row: FederationRow) -> bool:
    """Whether a phone's browser can do a federation's work: what `phone/app/protocol/eligibility.js` asks of it."""
    if row.feature_model_sha256 is not None:
        return True
    plan = row.parsed_plan
    learns_activities = plan.data.input is None and task_of(plan.task).name == DEFAULT_TASK.name
    adds_up = not row.kind.masked or plan.method["name"] in phone_sum_groups()
    return row.program_state in (MAKING, READY) and learns_activities and adds_up


def export_program(plan: Plan, is_over: Callable[[], bool]) -> tuple[bytes, str]:
    """Return a plan's program, held against torch by its gate, or nothing and why there is none."""
    with tempfile.TemporaryDirectory(prefix="gaitway-program-") as folder:
        source, target = Path(folder) / "plan.json", Path(folder) / "program.zip"
        source.write_text(plan.model_dump_json())
        polite = ["nice", "-n", str(max(0, NICE - os.nice(0)))] if shutil.which("nice") else []
        command = [*polite, sys.executable, "-m", "export", "program", "--plan", str(source), "--out", str(target)]
        with (Path(folder) / "said.txt").open("wb+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
            try:
                code = _waited(process, is_over)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            words = " ".join(output.read()[-4000:].decode(errors="replace").split())
        if code is None:
            return b"", f"the export took more than {TIMEOUT_S:.0f} s"
        if code or not target.is_file():
            return b"", words.removeprefix("Error: ")[-500:] or f"the export ended with code {code}"
        if target.stat().st_size > MAX_BYTES:
            return b"", f"the program has {target.stat().st_size:,} bytes; expected at most {MAX_BYTES:,}"
        return target.read_bytes(), ""


def _waited(process: subprocess.Popen[bytes], is_over: Callable[[], bool]) -> int | None:
    """Return the exit code; None if the time, or the server, was over before."""
    for _ in range(int(TIMEOUT_S / POLL_S)):
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if is_over():
                return None
    return None


def _note(row: FederationRow, blob: Blob | None, reason: str) -> None:
    row.program_state, row.program_note = (READY, "") if blob else (FAILED, reason[:1000])
    row.program_sha256, row.program_size = (blob.sha256, blob.size) if blob else (None, None)
