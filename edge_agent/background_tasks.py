"""What takes a while and needs no order: downloads, and the judgement of candidates; each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError
from edge_agent.machine.commands import Judge
from edge_agent.machine.events import BlobFailed, BlobFetched
from edge_agent.serving.acceptance import Verdict, judge_job
from edge_agent.transport.downloads import Blobs
from edge_agent.transport.renewal import Renewal
from federation.plan import Plan
from federation.protocol.messages import BlobPointer
from har_pipeline import PipelineError


@dataclass(frozen=True)
class Judged:
    """A verdict, and the name of the state's memory that it belongs to."""

    memory: str
    verdict: Verdict


Post = Callable[[BlobFetched | BlobFailed | Judged], None]


class Errands:
    """Returns at once; what comes of an errand is posted, from its thread."""

    def __init__(
        self,
        config: Config,
        renewal: Renewal,
        post: Callable[[BlobFetched | BlobFailed | Judged], None],
    ) -> None:
        self.config, self.post = config, post
        self._blobs = Blobs(config.agent.data_dir / "blobs", config.server.url, config.server.timeout_s, renewal)

    def blob(self, model: BlobPointer) -> Path:
        """Where a fetched blob lies."""
        return self._blobs.path(model.sha256)

    def fetch(self, model: BlobPointer) -> None:
        """Download a broadcast and verify it."""
        _in_background(lambda: self._fetch(model))

    def judge(self, plan: Plan, memory: str, command: Judge) -> None:
        """Compare a job's candidate with the present model."""
        _in_background(lambda: self._judge(plan, memory, command))

    def _fetch(self, model: BlobPointer) -> None:
        try:
            self._blobs.fetch(model)
        except (AgentError, OSError) as error:
            self.post(BlobFailed(model.sha256, str(error)))
        else:
            self.post(BlobFetched(model.sha256))

    def _judge(self, plan: Plan, memory: str, command: Judge) -> None:
        try:
            verdict = judge_job(self.config, plan, command)
        except (AgentError, PipelineError, OSError) as error:
            number, kind = command.round, command.kind
            why = f"round {number}: the candidate cannot be judged: {error}"
            verdict = Verdict(number, kind, "failed", why, release=command.release)
        self.post(Judged(memory, verdict))


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
