"""A finished run opened again: its examples, the models that it left, and what its rounds recorded.

Client models are those of the best round, which both scores come from; the server's model is that of the last round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from federation.aggregation.class_statistics import class_stats, empty_class_stats
from federation.methods import METHODS
from federation.records import Batch, ClassStats, Examples, Output
from federation.tasks import task_from_json
from federation.tasks.task import LabelledFeatures, Task
from federation.training.forward import network_input
from gaitway.errors import first_problem
from models.checkpoint import load_checkpoint
from models.model import Model
from models.registry import alp_models
from sim.data.federated_data import FederatedData
from sim.errors import AnalysisError, RunDirectoryError
from sim.experiment.settings import Experiment
from sim.reports.analysis.dots import subsample
from sim.results.run_directory import RunDirectory, model_file, round_model_file
from sim.rounds.analyses import batches_of
from sim.run import load_data, resolve
from sim.scores.diagnostics import Diagnostics
from sim.scores.records import RoundRecord

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


MAX_PIXELS = 2000
"""Of a client's test images so many pixels are kept: all of them would not fit into memory."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class FinishedRun:
    """A run and its data; models and features are read and computed once, when first asked for."""

    directory: RunDirectory
    settings: Experiment
    data: FederatedData
    progress: Progress = silent

    @property
    def method(self) -> str:
        """Name of the run's method."""
        return self.directory.config.method_name

    @property
    def task(self) -> Task:
        """What the run learnt."""
        return task_from_json(self.settings.task)

    @property
    def pools_data(self) -> bool:
        """Whether one model was trained on everybody's examples, so that no client has its own."""
        return METHODS[self.method].traits.pools_data

    @property
    def keeps_prototypes(self) -> bool:
        """Whether the server's state has prototypes, of ALP layers or of classes."""
        method = METHODS[self.method]
        return method.traits.requires_alp or bool(method.sums_at)

    @property
    def has_alp(self) -> bool:
        """Whether any of the run's networks has ALP layers."""
        return any(model.name in alp_models() for model in self.settings.models)

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The clients that left a model; all of them where data were pooled.

        Raises:
            AnalysisError: if none did.
        """
        names = tuple(name for name in self.data.clients if self.pools_data or self._file(name).is_file())
        if not names:
            raise AnalysisError(f"no client left a model in {self.directory.path / 'models'}; run it again")
        return names

    @property
    def trained(self) -> list[str]:
        """Those of the clients that have training examples."""
        return [name for name in self.clients if len(self.data.clients[name].train.y)]

    def model(self, client: str) -> Model:
        """Read the model that a client serves with, in evaluation mode."""
        return self.server if self.pools_data else load_checkpoint(self._file(client))[0]

    @cached_property
    def server(self) -> Model:
        """The server's model.

        Raises:
            AnalysisError: if the method has none.
        """
        if not self._file("global").is_file():
            raise AnalysisError(f"no global model in a run of {self.method} ({self.directory.path})")
        return load_checkpoint(self._file("global"))[0]

    def server_models(self) -> Iterator[tuple[RoundRecord, Model]]:
        """Yield evaluated rounds with the server's model after them: all that the run kept, and the last one.

        Raises:
            AnalysisError: if the method has none.
        """
        last = self.directory.rounds[-1]
        for record in self.directory.rounds[:-1]:
            if (path := round_model_file(self.directory.path, record.round)).is_file():
                yield record, load_checkpoint(path)[0]
        yield last, self.server

    @property
    def has_server_model(self) -> bool:
        """Whether the run left a global model."""
        return self._file("global").is_file()

    @cached_property
    def diagnostics(self) -> dict[int, Diagnostics]:
        """What the rounds recorded, by round; rounds of an older version recorded nothing."""
        return diagnostics_of(self.directory)

    @property
    def without_diagnostics(self) -> str:
        """What is said where the rounds of a method that records something have recorded nothing."""
        where = f"no diagnostics in rounds.jsonl of {self.directory.path}"
        return f"{where}: no round was published, or an older version ran it; run it again"

    @cached_property
    def own_features(self) -> dict[str, Tensor]:
        """Features (n_k, D) of each client's test examples under its own model; clients without any are left out.

        In segmentation they are of pixels, some thousand a client.

        Raises:
            AnalysisError: if no client with a model has a test example.
        """
        tests = {name: self.data.clients[name].test for name in self.clients}
        names = [name for name in self.clients if len(tests[name].y)]
        if not names:
            raise AnalysisError(f"no client with a model has a test example in {self.directory.path}")
        return {
            name: self.rows(self.model(name), tests[name], MAX_PIXELS, name)[0]
            for name in self._counted("features", names)
        }

    @cached_property
    def own_stats(self) -> dict[str, ClassStats]:
        """Sums of each client's training features by class, under its own model."""
        names = self._counted("prototypes", self.trained)
        return {name: self.stats(self.model(name), self.data.clients[name].train) for name in names}

    @cached_property
    def server_stats(self) -> dict[str, ClassStats]:
        """Sums of each client's training features by class, under the server's model."""
        names = self._counted("prototypes, by the server's model,", self.trained)
        return {name: self.stats(self.server, self.data.clients[name].train) for name in names}

    def features(self, model: Model, x: Tensor) -> Tensor:
        """Map x (n, ...) to features (n, D) in the batches of the run's evaluation."""
        return torch.cat([output.features for _, output in self.outputs(model, Examples(x, x))])

    @torch.no_grad()
    def outputs(self, model: Model, examples: Examples) -> Iterator[tuple[Batch, Output]]:
        """Yield what a model makes of examples, in the batches of the run's evaluation; large images in smaller."""
        for x, y in batches_of(examples, self.settings.eval_batch):
            batch = Batch(network_input(x, self.data.moments), y, torch.ones(len(x)))
            found = model(batch.x)
            yield batch, Output(found.features, found.logits, {})

    def rows(
        self, model: Model, examples: Examples, limit: int, *what: str, without: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return features (m, D) and classes (m,): of every example, or, drawn by `what`, of up to `limit` pixels.

        Pixels of the class `without`, and those that have none, are left out; of a task without classes all are 0.
        """
        kept: list[tuple[Tensor, Tensor]] = []
        for number, (batch, output) in enumerate(self.outputs(model, examples)):
            labelled = self._labelled(output, batch)
            counted = (labelled.mask > 0) & (labelled.classes != (-1 if without is None else without))
            some = counted.nonzero()[:, 0]
            if output.features.dim() > 2:
                some = some[subsample(len(some), limit, self.settings.training.seed, *what, str(number))]
            kept.append((labelled.features[some], labelled.classes[some]))
        features, classes = (torch.cat(parts) for parts in zip(*kept, strict=True))
        if len(classes) <= max(limit, len(examples.y)):
            return features, classes
        few = subsample(len(classes), limit, self.settings.training.seed, *what)
        return features[few], classes[few]

    def _labelled(self, output: Output, batch: Batch) -> LabelledFeatures:
        if self.task.has_classes:
            return self.task.labelled_features(output, batch)
        return LabelledFeatures(output.features, torch.zeros(len(output.features), dtype=torch.int64), batch.mask)

    def stats(self, model: Model, examples: Examples) -> ClassStats:
        """Sum the features of some examples, or of their pixels, by class.

        Raises:
            AnalysisError: if the task has no classes.
        """
        if not self.task.has_classes:
            raise AnalysisError(f"the task {self.task.name} has no classes that features could be told apart by")
        stats = empty_class_stats(self.settings.training, torch.zeros(()))
        for batch, output in self.outputs(model, examples):
            stats = class_stats(self.task.labelled_features(output, batch), self.settings.training.classes, stats)
        return stats

    def _counted(self, what: str, names: list[str]) -> Iterator[str]:
        for done, name in enumerate(names):
            self.progress(f"{what} of client {name}", done, len(names))
            yield name

    def _file(self, name: str) -> Path:
        return model_file(self.directory.path, name)


def diagnostics_of(run: RunDirectory) -> dict[int, Diagnostics]:
    """Return what a run's rounds recorded, by round.

    Raises:
        RunDirectoryError: if it is not this version's.
    """
    try:
        return {entry.round: Diagnostics.model_validate(entry.diagnostics) for entry in run.rounds if entry.diagnostics}
    except ValidationError as error:
        raise RunDirectoryError(f"{run.path / 'rounds.jsonl'}: diagnostics: {first_problem(error)}") from error


def open_run(path: Path, root: Path | None, cache: Path | None, progress: Progress = silent) -> FinishedRun:
    """Open a finished run and prepare its data again.

    Raises:
        AnalysisError: if the run is not finished.
        RunDirectoryError: if `path` is not a run's directory, or its settings are not this version's.
    """
    directory = RunDirectory(path)
    if not directory.finished:
        done, planned = len(directory.rounds), directory.config.planned_rounds
        raise AnalysisError(f"{path} is not finished ({done} of {planned} rounds); repeat its command to resume it")
    settings: Experiment = directory.config.model_copy(update={"device": "cpu"})  # wherever the run was
    plan = resolve(settings)
    data = load_data(plan, root, cache, lambda done, client: progress(f"windows of client {client}", done, 0))
    return FinishedRun(directory, settings, data, progress)
