"""What a finished run leaves besides numbers: its models, and a few segmented images.

A few test images beside their truth, what a model answers and how sure it is, as one file of a run's directory.
Which images, the seed says, whatever the method: so runs of one seed show the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from pathlib import Path
from typing import NamedTuple, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

import models
from federation.records import Client, Examples, Output, Tensors
from federation.seeds import generator
from federation.tasks.task import Task
from federation.training.forward import initial_model
from federation.training.prediction import answer
from gaitway.files import write_file
from gaitway.tasks import DEFAULT_TASK, TargetKind
from har_pipeline import ChannelStatistics
from models.checkpoint import CheckpointInfo, save_checkpoint
from models.mae import encoder_state, is_autoencoder_state
from sim.data.federated_data import FederatedData
from sim.data.sources import get_source
from sim.errors import RunDirectoryError
from sim.experiment.networks import Architecture
from sim.experiment.settings import Experiment
from sim.results.run_directory import model_file, round_model_file
from sim.rounds.simulation import Simulation
from sim.scores.evaluation import ClientModel

SERVER = "global"


def save_models(simulation: Simulation, settings: Experiment, out: Path) -> None:
    """Write `models/{client}.safetensors`, each with its own network, and `models/global.safetensors` if there is one.

    Clients' models are those of the best round, or of the last one where no round has a score. A client that serves
    with a part of what it keeps (Ditto's personal model) leaves that part. Of a masked autoencoder the encoder is left,
    as the model that the plan names, with a fresh head: for `--init`.
    """
    if simulation.setup.method.has_global_model:
        _save(model_file(out, SERVER), SERVER, simulation.server_model(), settings, simulation)
    for name, client in (simulation.best_round.best.clients or simulation.clients).items():
        _save(model_file(out, name), name, client, settings, simulation)


def save_round_model(simulation: Simulation, settings: Experiment, out: Path) -> None:
    """Write the server's model as it is after this round, if there is one."""
    if simulation.setup.method.has_global_model:
        path = round_model_file(out, simulation.round_number)
        _save(path, SERVER, simulation.server_model(), settings, simulation)


def _save(path: Path, name: str, client: Client, settings: Experiment, simulation: Simulation) -> None:
    network = simulation.networks[0] if name == SERVER else simulation.network_of[name]
    taken = get_source(settings.dataset).input_spec(settings.dataset_options, settings.data.pipeline)
    served = network.setup.method.serving_model(client)
    state = {**served.params, **served.buffers}
    pretrained = is_autoencoder_state(state)
    info = CheckpointInfo(
        model=network.model.name,
        options=network.model.options,
        labels=simulation.data.labels,
        input=taken.normalized_by(*_normalization(name, simulation.data)),
        method=settings.method["name"],
        round=(simulation.best_round.best.round if name != SERVER else 0) or simulation.round_number,
        federation=f"sim-{settings.dataset}",
        task=settings.task if network.setup.task.is_served else {"name": DEFAULT_TASK.name},
        fresh_head=pretrained,
        normalization=settings.data.normalization if taken.kind == "window" else "",
    )
    if pretrained:
        state = _encoder(state, network, settings)
    save_checkpoint(path, state, info)


def _encoder(state: Tensors, network: Architecture, settings: Experiment) -> Tensors:
    spec, training = network.model, settings.training

    def fresh() -> models.Model:
        return models.build(spec.name, classes=training.classes, **spec.options)

    return encoder_state(state, cast(models.Model, initial_model(fresh, training.seed)))


def _normalization(name: str, data: FederatedData) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # under `client` normalization the server's model has no statistics of its own: it gets the sum of all clients'
    statistics = data.statistics.get(name) or reduce(add, data.statistics.values())
    return tuple(statistics.mean.tolist()), tuple(statistics.std.tolist())


FILE = "images.safetensors"
MAX_BYTES = 1 << 28
MAX_IMAGES = 4
CANDIDATES = 48
"""So many images are looked at for some of different classes: all of them would have to be decoded."""

Place = tuple[str, int]
"""A client, and the place of an image among its test examples."""


class SegmentedImages(NamedTuple):
    """k images of one size: x (k, 3, H, W) uint8, classes (k, H, W) int16, entropies in nats (k, H, W) float16."""

    x: Tensor
    truth: Tensor
    predicted: Tensor
    softmax_entropy: Tensor
    feature_entropy: Tensor
    names: tuple[str, ...]  # whose image each is
    feature_dim: int


TENSORS = SegmentedImages._fields[:5]


def choose_images(tests: Mapping[str, Examples], task: Task, seed: int) -> list[Place]:
    """Draw up to four test images, of as many different classes as the first drawn ones have."""
    places = [(name, row) for name, test in tests.items() for row in range(len(test.y))]
    drawn = [places[k] for k in generator(seed, "images").permutation(len(places))[:CANDIDATES]]
    seen: dict[int, int] = {}
    ranks: list[tuple[int, int]] = []
    for order, (name, row) in enumerate(drawn):
        label = int(task.partition_label(tests[name].y[row : row + 1])[0])
        ranks.append((seen.get(label, 0), order))
        seen[label] = seen.get(label, 0) + 1
    return [drawn[order] for _, order in sorted(ranks)[:MAX_IMAGES]]


def shown(x: Tensor, statistics: ChannelStatistics | None) -> Tensor:
    """Return images (k, C, H, W) as colours (k, 3, H, W) uint8: bytes as they are, numbers as their bytes were.

    Without statistics to undo their normalization each image is spread from black to white.
    """
    if x.dtype != torch.uint8:
        numbers = x.float()
        if statistics is not None:
            mean, std = (torch.as_tensor(moment, dtype=torch.float32) for moment in (statistics.mean, statistics.std))
            numbers = numbers * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
        else:
            low, high = numbers.amin((1, 2, 3), keepdim=True), numbers.amax((1, 2, 3), keepdim=True)
            numbers = (numbers - low) / (high - low).clamp(min=1e-6)
        x = (255 * numbers).round().clamp(0, 255).to(torch.uint8)
    return x if x.shape[1] == 3 else x[:, :1].expand(-1, 3, -1, -1)


def image_of(
    task: Task, name: str, x: Tensor, truth: Tensor, output: Output, statistics: ChannelStatistics | None
) -> SegmentedImages:
    """Join one image x (1, C, H, W), its truth (1, H, W), and what a model made of it."""
    size = (int(x.shape[-2]), int(x.shape[-1]))
    return SegmentedImages(
        shown(x, statistics),
        truth.to(torch.int16),
        task.prediction(output).to(torch.int16),
        softmax_entropy(output.logits).half(),
        feature_entropy(output.features, size).half(),
        (name,),
        int(output.features.shape[1]),
    )


def together(parts: Iterable[SegmentedImages]) -> SegmentedImages | None:
    """Lay images of one size together; None of none."""
    found = list(parts)
    if not found:
        return None
    tensors = {name: torch.cat([getattr(part, name) for part in found]) for name in TENSORS}
    names = tuple(name for part in found for name in part.names)
    return SegmentedImages(**tensors, names=names, feature_dim=found[0].feature_dim)


def images_of(simulation: Simulation) -> SegmentedImages | None:
    """Segment a few test images by the server's model, or each by its own client's of the best round.

    None where the task is another, or nobody has a model and test images.
    """
    task, data = simulation.task, simulation.data
    if task.target is not TargetKind.MASK:
        return None
    served = (
        ClientModel(simulation.setup, simulation.server_model()) if simulation.setup.method.has_global_model else None
    )
    best = simulation.best_round.best.clients
    tests = {name: test for name, test in data.test.items() if len(test.y) and (served or name in best)}
    models: Mapping[str, ClientModel] = dict.fromkeys(tests, served) if served else simulation.models(tests, best)

    def segmented(name: str, row: int) -> SegmentedImages:
        x, y = tests[name].x[row : row + 1], tests[name].y[row : row + 1]
        output = answer(*models[name], x)
        return image_of(task, f"{name}, test image {row + 1}", x, y, output, data.statistics.get(name))

    places = choose_images(tests, task, simulation.setup.training.seed)
    return together(segmented(name, row) for name, row in places)


def write_images(path: Path, images: SegmentedImages) -> None:
    """Write the file."""
    tensors = {name: getattr(images, name).contiguous() for name in TENSORS}
    facts = {"names": json.dumps(images.names), "feature_dim": str(images.feature_dim)}
    write_file(path, safetensors.torch.save(tensors, facts))


def read_images(path: Path) -> SegmentedImages | None:
    """Read the file; None where there is none.

    Raises:
        RunDirectoryError: if it is damaged.
    """
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        with safe_open(path, "pt") as file:
            facts = file.metadata()
            tensors = {name: file.get_tensor(name) for name in TENSORS}
        names = tuple(map(str, json.loads(facts["names"])))
        images = SegmentedImages(**tensors, names=names, feature_dim=int(facts["feature_dim"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path}: {error}; the file is damaged, or another version's") from error
    k, _, height, width = images.x.shape
    if len(names) != k or any(part.shape != (k, height, width) for part in images[1:5]):
        raise RunDirectoryError(f"{path}: images and masks differ in shape; the file is damaged")
    return images


def softmax_entropy(logits: Tensor) -> Tensor:
    """Return H_S in nats, 0 to ln C, of logits (n, C, H, W): (n, H, W); a class that scores −∞ has no share."""
    return _entropy(logits.double().softmax(1))


def feature_entropy(features: Tensor, size: tuple[int, int]) -> Tensor:
    """Return H_E in nats, 0 to ln D, of features (n, D, h, w), interpolated bilinearly to size (H, W): (n, H, W)."""
    raised = features.double() - features.double().amin(1, keepdim=True).clamp(max=0)
    sums = raised.sum(1, keepdim=True)
    maps = _entropy(raised / torch.where(sums > 0, sums, 1.0))
    return functional.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _entropy(shares: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(shares).sum(1)  # −p ln p, 0 where p is 0
    return found
