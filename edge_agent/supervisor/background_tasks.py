"""Slow, independent tasks, each in its own thread: downloads, and the evaluation of candidates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.config.settings import Config
from edge_agent.errors import AgentError, DownloadError
from edge_agent.machine.commands import Evaluate
from edge_agent.machine.events import BlobFailed, BlobFetched, SumMessageFetched
from edge_agent.serving.acceptance import evaluate_job
from edge_agent.serving.model_registry import Verdict
from edge_agent.storage.data_folder import BLOBS, NETWORKS, SUM_MESSAGES
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.renewal import CredentialRenewal
from federation.plan import Plan
from federation.protocol.messages import BlobPointer, Invitation
from federation.secure_sums.messages import MAX_MESSAGE_BYTES
from gaitway.threads import run_in_thread
from har_pipeline import PipelineError

log = logging.getLogger(__name__)

SUM_RETRY_S = 2.0
"""A stage of a secure sum lasts a minute."""
MAX_FILE_BYTES = 256 << 20
"""Of a network's file or a program."""


@dataclass(frozen=True)
class Evaluated:
    """A verdict, and the name of the state's memory that it belongs to."""

    memory: str
    command: Evaluate
    verdict: Verdict


Post = Callable[[BlobFetched | BlobFailed | Evaluated | SumMessageFetched], None]


class BackgroundTasks:
    """Returns at once; what comes of an errand is posted, from its thread."""

    def __init__(
        self,
        config: Config,
        renewal: CredentialRenewal,
        post: Callable[[BlobFetched | BlobFailed | Evaluated | SumMessageFetched], None],
    ) -> None:
        self.config, self.post = config, post
        server = config.server
        self._blobs, self._networks, self._sums = (
            BlobDownloader(config.agent.data_dir / name, server.url, server.timeout_s, renewal, server.ca_file)
            for name in (BLOBS, NETWORKS, SUM_MESSAGES)
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

    def sum_message(self, invitation: Invitation) -> Path:
        """Return where the part of a secure sum's message lies that all members are told; not fetched: nothing is."""
        sha256 = invitation.sum.shared.sha256 if invitation.sum and invitation.sum.shared else ""
        return self._sums.path(sha256)

    def fetch_sum_message(self, invitation: Invitation) -> None:
        """Download that part and verify it: a list of members, or of signatures."""
        run_in_thread(
            "secure sum",
            lambda: self._fetch_sum_message(invitation),
            lambda failure: self.post(SumMessageFetched(invitation, failure.error)),
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

    def _fetch_sum_message(self, invitation: Invitation) -> None:
        pointer = invitation.sum.shared if invitation.sum else None
        reason = "" if pointer is None else f"{pointer.size:,} bytes; at most {MAX_MESSAGE_BYTES:,} are downloaded"
        try:
            if pointer is not None and pointer.size <= MAX_MESSAGE_BYTES:
                self._sums.fetch(pointer)
                reason = ""
        except (AgentError, OSError) as error:
            reason = str(error)
            time.sleep(SUM_RETRY_S)
        self.post(SumMessageFetched(invitation, reason))

    def _evaluate(self, plan: Plan, memory: str, command: Evaluate) -> None:
        try:
            verdict = evaluate_job(self.config, plan, command)
        except (AgentError, PipelineError, OSError) as error:
            self.post(_failed(memory, command, str(error)))
        else:
            self.post(Evaluated(memory, command, verdict))


def _failed(memory: str, command: Evaluate, reason: str) -> Evaluated:
    why = f"round {command.round}: the candidate can't be evaluated: {reason}"
    return Evaluated(memory, command, Verdict(command.round, command.kind, "failed", why, release=command.release))
