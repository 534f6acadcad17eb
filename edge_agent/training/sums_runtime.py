"""A continuous federation's exact sums and heads without torch, from the server's ONNX file of the network and numpy.

What a device with torch does by `federation.methods.analytic`: features of its windows become whole numbers whose sums
it sends, and of everybody's sums and its own it solves heads. The arithmetic is the same (`ridge_numpy`), features are
those of ONNX Runtime, equal to torch's up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.errors import JobError, NonRetryableJobError, UnusableModelError
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import Preparation
from edge_agent.storage.shared_sums import read_shared_sums
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, Job
from edge_agent.training.limits import RoundBudget
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.program_candidate import write_checkpoint
from edge_agent.training.runtime import (
    FileParity,
    Orientation,
    SentUpload,
    TrainedRound,
    TrainingRuntime,
    blaming_model,
    parity_examples,
    require_whole_broadcast,
)
from export.program.standalone import constants_of, with_constants
from export.runtime import Session
from federation.aggregation.pseudo_labels import pseudo_labelled_head
from federation.aggregation.ridge_numpy import (
    FixedSums,
    RidgeHead,
    RidgeOptions,
    check_believable,
    solve,
    solve_mean,
    sums_of,
    travelling,
)
from federation.protocol import arrays
from federation.rounds.serving import (
    PERSONALIZED,
    PERSONALIZED_ANY_ORIENTATION,
    SHARED_ANY_ORIENTATION,
    SHARED_HEAD,
)
from federation.training.schedule import WindowCopies
from federation.training.window_changes import lacks_gyroscope, window_copies
from gaitway.tasks.classification import confusion
from har_pipeline import ClientWindows

METHOD = "analytic"
WEIGHT, BIAS = "module.head.weight", "module.head.bias"
"""The head in an exported file."""
GRAM, MOMENT = "memory/gram", "memory/moment"
"""A client's own sums, as one that torch has trained keeps them too."""
PARITY_EXAMPLES = 256
MAX_LOGIT_DELTA = 1e-4


class SumsRuntime(TrainingRuntime):
    """Sums whole numbers of the network's features, and solves heads; there is nothing to train."""

    refusal = "a continuous federation has heads, and no candidates of rounds"
    has_global_model, trains, keeps_partial_work = True, False, False

    def __init__(self, job: Job, settings: Preparation, data: LocalData, network: bytes) -> None:
        super().__init__(job, settings, data)
        self.options = RidgeOptions.of(job.plan.method)
        self._network, self._session = network, Session.load(network, threads=job.threads)
        with blaming_model():
            self._shared = read_shared_sums(job.broadcast, len(job.plan.labels))
        if (columns := self._session.metadata.acceleration_columns) and lacks_gyroscope(data.train.x):
            self._shared = self._shared._replace(sums=self._shared.sums.restricted(columns))
        self.columns = self._session.metadata.orientation_free_columns

    @classmethod
    def open(cls, job: Job, settings: Preparation, data: LocalData) -> SumsRuntime:
        """Check the network's file and the broadcast against the plan.

        Raises:
            JobError: if one of the files is missing, or not the announced one.
            NonRetryableJobError: for a plan whose sums need torch.
            UnusableModelError: for a broadcast without sums, or with sums that devices cannot have sent.
        """
        require_whole_broadcast(job)
        if job.onnx_network is None or not job.onnx_network.is_file():
            raise JobError("there is no ONNX file of this federation's network here, of which sums are made")
        if reason := _needs_torch(job, data):
            raise NonRetryableJobError(f"{reason}, with which a device takes part by torch: install gaitway[edge]")
        opened = cls(job, settings, data, job.onnx_network.read_bytes())
        metadata, shape = opened._session.metadata, tuple(data.train.x.shape[1:])
        if metadata.labels != tuple(job.plan.labels) or metadata.input.shape != shape:
            raise NonRetryableJobError(
                f"the network's file is of {metadata.labels} and takes {noun(settings)} of shape "
                f"{metadata.input.shape}; the plan has {tuple(job.plan.labels)}, and these are {shape}"
            )
        if reason := check_believable(opened._shared.sums, opened._shared.clients):
            raise UnusableModelError(reason)
        return opened

    def load_client(self) -> tuple[FixedSums | None, Mapping[str, Any]]:
        """Return the sums that were sent last, if there are any; they leave no residual.

        Raises:
            JobError: if the kept state is of another network.
        """
        if self.job.client_state is None:
            return None, {}
        kept = arrays.read_kept(self.job.client_state.read_bytes())
        shapes = {name: kept[name].shape for name in (GRAM, MOMENT) if name in kept}
        if shapes != {GRAM: self._shared.sums.gram.shape, MOMENT: self._shared.sums.moment.shape}:
            raise JobError("the stored client state doesn't match the plan; delete the data folder")
        return FixedSums(kept[GRAM], kept[MOMENT]), {}

    def received(self, client: FixedSums | None) -> FixedSums | None:
        """Return a client as it is: everybody's sums are added where a head is solved."""
        return client

    def statistics(self, client: FixedSums | None) -> dict[str, np.ndarray]:
        """Compare the answers of the client's own head, or without sums of its own those of the shared one."""
        answered = self.heads(client)[SHARED_HEAD if client is None else PERSONALIZED].classes(
            self._features("holdout")
        )
        return {"confusion": confusion(self.data.holdout.y, answered, len(self.job.plan.labels))}

    def train(self, client: FixedSums | None, budget: RoundBudget) -> TrainedRound:
        """Sum up the windows anew: what is sent replaces what was sent before."""
        own = self._sums(self._features("train"), self.data.train)
        return TrainedRound(own, {"gram": own.gram, "moment": own.moment}, float("nan"), 0)

    def sent(self, trained: TrainedRound, residual: Any) -> SentUpload:
        """Write the sums, which travel as they are, and keep them."""
        kept = {GRAM: trained.client.gram, MOMENT: trained.client.moment}
        upload = arrays.encode(trained.upload, compression=self.job.compression)
        return SentUpload(upload, arrays.encode(kept))

    def is_trained(self) -> bool:
        """Whether anybody's sums are in the broadcast."""
        return self._shared.clients > 0

    def heads(self, own: FixedSums | None) -> dict[str, RidgeHead]:
        """Solve every head; the personal ones of no sums of one's own are the shared ones."""
        options, damping = self.options, self.options.damping
        shared, others = self._shared.sums, options.own_weight * max(1, self._shared.clients)
        means = self.columns, options.orientation_free_share
        found = {
            SHARED_HEAD: solve_mean(shared, None, 0, damping, *means),
            PERSONALIZED: solve_mean(shared, own, others, damping, *means),
        }
        if self.columns:
            found |= {
                SHARED_ANY_ORIENTATION: solve(shared, None, 0, damping, self.columns),
                PERSONALIZED_ANY_ORIENTATION: solve(shared, own, others, damping, self.columns),
            }
        return found

    def orientation(self) -> Orientation:
        """Measure how far gravity lies from what is usual, by the features that say it (`models.har_features`)."""
        columns = self._session.metadata.gravity_columns
        return Orientation.of(self._shared.sums, columns, self._features("train")[:, list(columns)])

    def adapted_head(self, client: FixedSums | None, *, is_far: bool) -> RidgeHead | None:
        """Let the windows count as what the shared head names them."""
        features, described = self._features("train"), (self.options, self.columns)
        return pseudo_labelled_head(self._shared.sums, self._shared.clients, features, *described, is_far=is_far)

    def save_heads(self, heads: Mapping[str, RidgeHead], version: int) -> None:
        """Lay each head into the network's file, and write its checkpoint."""
        for name, head in heads.items():
            self._save_head(self.job.out / HEADS / name, head, version)

    def _sums(self, features: np.ndarray, windows: ClientWindows) -> FixedSums:
        """Sum over windows with these features, and over the copies of them that the plan asks for."""
        options, job = self.options, self.job
        copies = WindowCopies(options.rotations, options.degrees, options.sensor_loss)
        changed = window_copies(windows.x, job.plan.training.seed, job.device, copies)
        together = np.concatenate([features, *(self._session.predict(x).embedding for x in changed)])
        y = np.tile(windows.y, len(together) // max(1, len(windows.y)))
        return travelling(sums_of(together, y, len(job.plan.labels), options.clip))

    def _features(self, part: str) -> np.ndarray:
        features: np.ndarray = self._session.predict(getattr(self.data, part).x).embedding
        return features

    def _save_head(self, folder: Path, head: RidgeHead, version: int) -> None:
        weight, bias = head.weight.astype(np.float32), head.bias.astype(np.float32)
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise UnusableModelError("a head has NaN or infinity in it: the broadcast's sums are not sound")
        spec = self.input_spec
        metadata = replace(
            self._session.metadata, round=version, parent_sha256=self.job.model.sha256, input=spec, method=METHOD
        )
        model = with_constants(self._network, {WEIGHT: weight, BIAS: bias}, metadata.to_properties())
        examples = parity_examples(self.data, PARITY_EXAMPLES)
        origin = f"{noun(self.settings)} of this device, against the solved head"
        scores = head.scores(self._session.predict(examples).embedding)
        parity = FileParity.of(Session.load(model).predict(examples).logits, scores, origin)
        if not parity.max_abs_diff <= MAX_LOGIT_DELTA:
            raise NonRetryableJobError(
                f"a head's file answers {parity.max_abs_diff:.2e} beside what was solved; expected at most "
                f"{MAX_LOGIT_DELTA:.0e}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / MODEL, model)
        write_checkpoint(self.job, folder / CHECKPOINT, self._state(model), spec, version)
        parity.write(folder)

    def _state(self, model: bytes) -> arrays.Arrays:
        """Return the network's parameters and buffers as its file has them."""
        known = constants_of(model)
        state = {name.removeprefix("module."): value for name, value in known.items() if name.startswith("module.")}
        width, metadata = state["head.weight"].shape[1], self._session.metadata
        flags = {"orientation_free": self.columns, "acceleration": metadata.acceleration_columns}
        for name, columns in flags.items():  # no operator reads them
            if columns:
                state[name] = np.zeros(width, np.float32)
                state[name][list(columns)] = 1
        return state


def _needs_torch(job: Job, data: LocalData) -> str:
    if job.plan.method.get("name") != METHOD:
        return f"the method {job.plan.method.get('name')} is not {METHOD}"
    if data.statistics is not None:
        return "the plan normalizes windows by the device's own statistics"
    return ""
