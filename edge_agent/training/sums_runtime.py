"""A continuous federation's exact sums and heads without torch: the server's ONNX file of the network, and numpy.

What a device with torch does by `federation.methods.analytic`: features of its windows become whole numbers whose sums
it sends, and of everybody's sums and its own it solves heads. The arithmetic is the same (`ridge_numpy`), features are
those of ONNX Runtime, equal to torch's up to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.errors import JobError, NonRetryableJobError, UnusableModelError
from edge_agent.machine.state import leaves_model
from edge_agent.storage.data_folder import write_file
from edge_agent.storage.images import Preparation
from edge_agent.storage.shared_sums import read_shared_sums
from edge_agent.training.job import CHECKPOINT, HEADS, MODEL, ORIENTATION, PARITY, UNTRAINED, Job
from edge_agent.training.local_data import LocalData, noun
from edge_agent.training.processor import ON_CPU
from edge_agent.training.program_candidate import write_checkpoint
from edge_agent.training.round_budget import RoundBudget
from edge_agent.training.runtime import Measurement, SentUpload, TrainedRound, blaming_model, require_whole_broadcast
from export.program.standalone import constants_of, with_constants
from export.runtime import Session
from federation.aggregation.pseudo_labels import pseudo_labelled_head
from federation.aggregation.ridge_numpy import (
    FAR,
    FixedSums,
    RidgeHead,
    RidgeOptions,
    check_believable,
    feature_moments,
    solve,
    solve_mean,
    sums_of,
    travelling,
)
from federation.protocol import arrays
from federation.rounds.gains import Gains
from federation.rounds.serving import (
    ADAPTED,
    PERSONALIZED,
    PERSONALIZED_ANY_ORIENTATION,
    SHARED_ANY_ORIENTATION,
    SHARED_HEAD,
    usable_heads,
)
from federation.training.schedule import WindowCopies
from federation.training.window_changes import window_copies
from gaitway.tasks import task_of
from gaitway.tasks.classification import confusion
from har_pipeline import ClientWindows

METHOD = "analytic"
WEIGHT, BIAS = "module.head.weight", "module.head.bias"
"""The head in an exported file."""
GRAM, MOMENT = "memory/gram", "memory/moment"
"""A client's own sums, as one that torch has trained keeps them too."""
PARITY_EXAMPLES = 256
MAX_LOGIT_DELTA = 1e-4
ROUNDS = "a continuous federation has heads, and no candidates of rounds"


class SumsRuntime:
    """Everything that a job works with; see `edge_agent.training.runtime.TrainingRuntime`."""

    has_global_model, trains, keeps_partial_work, placement = True, False, False, ON_CPU

    def __init__(self, job: Job, settings: Preparation, data: LocalData, network: bytes) -> None:
        self.job, self.settings, self.data = job, settings, data
        self.task, self.options = task_of(job.plan.task), RidgeOptions.of(job.plan.method)
        self._network, self._session = network, Session.load(network, threads=job.threads)
        with blaming_model():
            self._shared = read_shared_sums(job.broadcast, len(job.plan.labels))
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

    @property
    def primary_metric(self) -> str:
        """Name of the task's."""
        return self.task.primary_metric

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
            raise JobError("the kept client state is another than the plan asks for; delete the data folder")
        return FixedSums(kept[GRAM], kept[MOMENT]), {}

    def measured_as_received(self, client: FixedSums | None) -> Measurement:
        """Measure the head of everybody's sums and those that were sent before, on the holdout."""
        return self.measured(client)

    def measured(self, client: FixedSums | None) -> Measurement:
        """Measure the head that a client has, or without sums of its own the shared one, on the holdout."""
        truth = self.data.holdout.y
        answered = self._heads(client)[SHARED_HEAD if client is None else PERSONALIZED].classes(
            self._features("holdout")
        )
        found = {"confusion": confusion(truth, answered, len(self.job.plan.labels))}
        sound = self.task.soundness(found, len(truth), self.job.plan.labels, noun(self.settings))
        return Measurement(self.task.scores(found), sound, self.task.scores_by_class(found))

    def train(self, client: FixedSums | None, budget: RoundBudget) -> TrainedRound:
        """Sum up the windows anew: what is sent replaces what was sent before."""
        own = self._sums(self._features("train"), self.data.train)
        return TrainedRound(own, {"gram": own.gram, "moment": own.moment}, float("nan"), 0)

    def class_counts(self) -> list[int] | None:
        """Count the training examples of each class."""
        counted: list[int] = np.bincount(self.data.train.y, minlength=len(self.job.plan.labels)).tolist()
        return counted

    def sent(self, trained: TrainedRound, residual: Any) -> SentUpload:
        """Write the sums, which travel as they are, and keep them."""
        kept = {GRAM: trained.client.gram, MOMENT: trained.client.moment}
        upload = arrays.encode(trained.upload, compression=self.job.compression)
        return SentUpload(upload, arrays.encode(kept))

    def write_summand(self, trained: TrainedRound, steps: int, path: Path, gains: Gains) -> dict[str, Any]:
        """Refuse: secure sums are of rounds."""
        raise NonRetryableJobError(ROUNDS)

    def is_trained(self) -> bool:
        """Whether anybody's sums are in the broadcast."""
        return self._shared.clients > 0

    def shared_model(self, client: FixedSums) -> RidgeHead:
        """Refuse: `update_heads` makes the heads."""
        raise NonRetryableJobError(ROUNDS)

    def personal_model(self, client: FixedSums) -> RidgeHead:
        """Refuse: `update_heads` makes the heads."""
        raise NonRetryableJobError(ROUNDS)

    def midway_model(self, first: RidgeHead, second: RidgeHead) -> RidgeHead:
        """Refuse: the heads of sums are mixtures of the two already."""
        raise NonRetryableJobError(ROUNDS)

    def answers(self, served: RidgeHead, data: LocalData) -> np.ndarray:
        """Refuse: heads are compared once they are files."""
        raise NonRetryableJobError(ROUNDS)

    def retrain(self, fold: LocalData) -> FixedSums:
        """Refuse: heads are chosen by the holdout alone."""
        raise NonRetryableJobError(ROUNDS)

    def save(self, served: RidgeHead, folder: Path, round_number: int) -> None:
        """Refuse: `update_heads` makes the files."""
        raise NonRetryableJobError(ROUNDS)

    def export(self, checkpoints: Mapping[Path, Path]) -> None:
        """Refuse: `update_heads` makes the files."""
        raise NonRetryableJobError(ROUNDS)

    def update_heads(self, client: FixedSums | None) -> None:
        """Make of the newest sums each head that the device can serve with, as ONNX and as a checkpoint.

        Raises:
            NonRetryableJobError: if there is none yet.
        """
        job = self.job
        own = self.load_client()[0] if client is None else client
        if not leaves_model(job.plan):
            return
        heads = usable_heads(self._heads(own), is_trained=self.is_trained(), is_labelled=self.data.is_labelled)
        if not heads:
            raise NonRetryableJobError(UNTRAINED)
        features = self._features("train")
        lies = self._orientation(features)
        if not self.data.is_labelled:
            described = self.options, self.columns
            adapted = pseudo_labelled_head(
                self._shared.sums, self._shared.clients, features, *described, is_far=bool(lies["is_far"])
            )
            heads |= {ADAPTED: adapted} if adapted else {}
        version = max(0, job.round - 1) if job.kind == "train" else job.round
        for name, head in heads.items():
            self._save_head(job.out / HEADS / name, head, version)
        write_file(job.out / HEADS / ORIENTATION, json.dumps(lies).encode())

    def _heads(self, own: FixedSums | None) -> dict[str, RidgeHead]:
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
        spec = self.settings.input_spec(self.data.mean, self.data.std)
        metadata = replace(
            self._session.metadata, round=version, parent_sha256=self.job.model.sha256, input=spec, method=METHOD
        )
        model = with_constants(self._network, {WEIGHT: weight, BIAS: bias}, metadata.to_properties())
        examples = np.concatenate([self.data.holdout.x, self.data.train.x])[:PARITY_EXAMPLES]
        exported, theirs = Session.load(model).predict(examples), head.scores(self._session.predict(examples).embedding)
        difference = float(np.abs(exported.logits - theirs).max(initial=0))
        if not difference <= MAX_LOGIT_DELTA:
            raise NonRetryableJobError(
                f"a head's file answers {difference:.2e} beside what was solved; expected at most {MAX_LOGIT_DELTA:.0e}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / MODEL, model)
        write_checkpoint(self.job, folder / CHECKPOINT, self._state(model), spec, version)
        parity = {
            "max_abs_diff": difference,
            "argmax_agreement": float((exported.logits.argmax(1) == theirs.argmax(1)).mean()) if len(examples) else 1.0,
            "windows": len(examples),
            "windows_from": f"{len(examples)} {noun(self.settings)} of this device, against the solved head",
            "batch_agreement": None,
        }
        write_file(folder / PARITY, json.dumps(parity).encode())

    def _state(self, model: bytes) -> arrays.Arrays:
        """Return the network's parameters and buffers as its file has them."""
        known = constants_of(model)
        state = {name.removeprefix("module."): value for name, value in known.items() if name.startswith("module.")}
        if self.columns:
            free = np.zeros(state["head.weight"].shape[1], np.float32)
            free[list(self.columns)] = 1
            state["orientation_free"] = free
        return state

    def _orientation(self, features: np.ndarray) -> dict[str, Any]:
        """Say how far gravity lies from what is usual, by the features that say it (`models.har_features`)."""
        columns = self._session.metadata.gravity_columns
        usual = feature_moments(self._shared.sums, columns) if columns else None
        if usual is None or not len(features):
            return {"distance": None, "is_far": False}
        distance = usual.distance(features[:, list(columns)].astype(np.float64).mean(0))
        return {"distance": distance, "is_far": distance > FAR}


def _needs_torch(job: Job, data: LocalData) -> str:
    if job.plan.method.get("name") != METHOD:
        return f"the method {job.plan.method.get('name')} is not {METHOD}"
    if data.statistics is not None:
        return "the plan normalizes windows by the device's own statistics"
    return ""
