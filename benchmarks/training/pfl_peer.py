"""pfl (Apple's pfl-research) as its tutorials use it: FederatedAveraging on a simulated backend, no evaluation.

Run with the interpreter of a virtual environment that has pfl and torch; one process with `--threads` threads. Several
processes are started by `torchrun --nproc_per_node N`, one thread each, as pfl's guide to distributed simulation says.
"""

from __future__ import annotations

import os
import time

import torch
import torch.nn.functional as F
from contestant import answer, arguments
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workloads import Work, logits


class Network(nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Return the mean cross entropy."""
        self.train(not eval)
        return F.cross_entropy(logits(self.network, x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Weighted]:
        """Return the loss as pfl wants it."""
        return {"loss": Weighted(float(self.loss(x, y, eval)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Answers after each round with its time."""

    def on_train_begin(self, *, model):
        self.begun = time.perf_counter()
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        now = time.perf_counter()
        if int(os.environ.get("RANK", "0")) == 0:
            answer(now - self.begun)
        self.begun = time.perf_counter()
        return False, Metrics()


def run(work: Work, threads: int, rounds: int) -> None:
    """Play all rounds; pfl has the loop."""
    torch.set_num_threads(threads)
    users = {str(k): each for k, each in enumerate(work.clients())}
    sizes = {name: len(each.y) for name, each in users.items()}

    def examples_of(name: str) -> PyTorchTensorDataset:
        each = users[name]
        return PyTorchTensorDataset([torch.from_numpy(each.x), torch.from_numpy(each.y)], user_id=name)

    dataset = FederatedDataset(examples_of, get_user_sampler("random", list(users)), user_id_to_weight=sizes)
    module = Network(work.network())
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[work.optimizer]
    model = PyTorchModel(module, kind, torch.optim.SGD(module.parameters(), 1.0))
    params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=1_000_000_000,
        train_cohort_size=work.cohort,
        val_cohort_size=0,
    )
    train = NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch)
    backend = SimulatedBackend(training_data=dataset, val_data=None)
    FederatedAveraging().run(
        algorithm_params=params, backend=backend, model=model, model_train_params=train, callbacks=[Clock()]
    )


if __name__ == "__main__":
    wanted = arguments()
    run(wanted.work, wanted.threads, wanted.rounds)
