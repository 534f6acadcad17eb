"""What takes a while and needs no order: downloads, and the judgement of candidates; each in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, DownloadError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import BlobFailed, BlobFetched
from edge_agent.serving.acceptance import evaluate_job
from edge_agent.serving.model_registry import Verdict
from edge_agent.storage.data_folder import BLOBS, NETWORKS
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.renewal import CredentialRenewal
from federation.plan import Plan
from federation.protocol.messages import BlobPointer
from gaitway.threads import run_in_thread
from har_pipeline import PipelineError

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 256 << 20
"""Of a network's file or a program."""


@dataclass(frozen=True)
class Evaluated:
    """A verdict, and the name of the state's memory that it belongs to."""

    memory: str
    asked: Evaluate
    verdict: Verdict


Post = Callable[[BlobFetched | BlobFailed | Evaluated], None]


class BackgroundTasks:
    """Returns at once; what comes of an errand is posted, from its thread."""

    def __init__(
        self,
        config: Config,
        renewal: CredentialRenewal,
        post: Callable[[BlobFetched | BlobFailed | Evaluated], None],
    ) -> None:
        self.config, self.post = config, post
        server = config.server
        self._blobs, self._networks = (
            BlobDownloader(config.agent.data_dir / name, server.url, server.timeout_s, renewal, server.ca_file)
            for name in (BLOBS, NETWORKS)
        )

    def blob(self, model: BlobPointer) -> Path:
        """Return where a fetched blob lies."""
        return self._blobs.path(model.sha256)

    def network(self, network: BlobPointer | None) -> Path | None:
        """Return where the ONNX file lies; None if none was announced, or it could not be fetched."""
        if network is None:
            return None
        path = self._networks.path(network.sha256)
        return path if path.is_file() else None

    def fetch(self, model: BlobPointer, network: BlobPointer | None = None) -> None:
        """Download a broadcast and verify it, and before it the ONNX file that the work needs."""
        run_in_thread(
            "download",
            lambda: self._fetch(model, network),
            lambda failure: self.post(BlobFailed(model.sha256, failure.error)),
        )

    def evaluate(self, plan: Plan, memory: str, command: Evaluate) -> None:
        """Compare a job's candidate with the present model."""
        run_in_thread(
            "evaluation",
            lambda: self._evaluate(plan, memory, command),
            lambda failure: self.post(_failed(memory, command, failure.error)),
        )

    def _fetch(self, model: BlobPointer, network: BlobPointer | None) -> None:
        if network is not None:
            try:
                if network.size > MAX_FILE_BYTES:
                    raise DownloadError(f"an ONNX file of {network.size:,} bytes; expected at most {MAX_FILE_BYTES:,}")
                self._networks.fetch(network)
            except (AgentError, OSError) as error:  # a device with torch can export it; one without tries again
                log.warning("the federation's ONNX file cannot be fetched: %s", error)
        try:
            self._blobs.fetch(model)
        except (AgentError, OSError) as error:
            self.post(BlobFailed(model.sha256, str(error)))
        else:
            self.post(BlobFetched(model.sha256))

    def _evaluate(self, plan: Plan, memory: str, command: Evaluate) -> None:
        try:
            verdict = evaluate_job(self.config, plan, command)
        except (AgentError, PipelineError, OSError) as error:
            self.post(_failed(memory, command, str(error)))
        else:
            self.post(Evaluated(memory, command, verdict))


def _failed(memory: str, command: Evaluate, reason: str) -> Evaluated:
    why = f"round {command.round}: the candidate cannot be judged: {reason}"
    return Evaluated(memory, command, Verdict(command.round, command.kind, "failed", why, release=command.release))
