"""The masked autoencoder's training loop, which resumes after a crash where its last epoch ended.

Ek et al., FedAli, 2024, arXiv 2411.10595, section 5 'Pretraining' and appendix E: Adam 3e-4, batches of 128, 200
epochs, 60 % of the patches masked; the model is `models.mae`. Differs from the paper, which does not say what moves
ALP's global prototypes without a server: an epoch is a round of one client, so that P_g ← P_l after each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import Adam

import models
from federation import wire
from federation.errors import WireError
from federation.plan import ModelSpec, Strict
from federation.seeds import generator, seed_for
from federation.training.forward import initial_model
from federation.tree import flatten
from gaitway.files import write_file
from gaitway.input_spec import InputSpec
from har_pipeline import ChannelStatistics
from models.checkpoint import CheckpointInfo, save_checkpoint
from models.hart import Hart
from models.mae import MaskedAutoencoder, pretrained_state, reconstruction_loss, renew_global_prototypes
from sim.errors import RunDirectoryError, SettingsError

OnEpoch = Callable[[int, float], None]
"""Called with the epoch that is done and its mean reconstruction loss."""


class PretrainingSettings(Strict):
    """What the weights depend on."""

    data: str
    model: ModelSpec
    epochs: int = Field(default=200, ge=1)
    batch_size: int = Field(default=128, ge=1)
    lr: float = Field(default=3e-4, gt=0)
    seed: int = Field(default=0, ge=0)
    device: str = "cpu"


def pretrain(
    settings: PretrainingSettings,
    x: Tensor,
    labels: tuple[str, ...],
    statistics: ChannelStatistics,
    out: Path,
    on_epoch: OnEpoch = lambda _epoch, _loss: None,
) -> None:
    """Train on windows x (n, 128, 6), normalized by `statistics`, and write the checkpoint `out`.

    `labels` name the classes of the checkpoint's fresh head. After every epoch `out`.progress holds all that it takes
    to go on; it is deleted at the end.

    Raises:
        SettingsError: if the model is not HART.
        RunDirectoryError: if `out`.progress is another pretraining's, or damaged.
    """
    encoder = initial_model(
        lambda: models.build(settings.model.name, classes=len(labels), **settings.model.options), settings.seed
    )
    if not isinstance(encoder, Hart):
        raise SettingsError(f"only hart and hart_alp are pretrained, {settings.model.name} came")
    made = initial_model(lambda: MaskedAutoencoder(encoder), settings.seed).to(settings.device)
    autoencoder = cast(MaskedAutoencoder, made)
    optimizer = Adam(autoencoder.parameters(), lr=settings.lr)
    progress = out.with_name(out.name + ".progress")
    done = _resume(progress, settings, autoencoder, optimizer)
    for epoch in range(done + 1, settings.epochs + 1):
        loss = _epoch(autoencoder, optimizer, x, settings, epoch)
        renew_global_prototypes(autoencoder)
        _keep(progress, settings, autoencoder, optimizer, epoch)
        on_epoch(epoch, loss)
    _write(out, settings, autoencoder, encoder, labels, statistics)
    progress.unlink(missing_ok=True)


def _epoch(
    autoencoder: MaskedAutoencoder, optimizer: Adam, x: Tensor, settings: PretrainingSettings, epoch: int
) -> float:
    """Run one epoch and return the mean loss over its windows."""
    autoencoder.train()
    total = 0.0
    for number, rows in enumerate(_batches(len(x), settings, epoch)):
        seed = torch.tensor(seed_for(settings.seed, "mask", epoch, number), device=x.device)
        batch = x[rows.to(x.device)]
        loss = reconstruction_loss(autoencoder(batch, seed), batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        total += float(loss.detach()) * len(rows)
    return total / len(x)


def _batches(count: int, settings: PretrainingSettings, epoch: int) -> Iterator[Tensor]:
    order = torch.from_numpy(generator(settings.seed, "pretraining", epoch).permutation(count))
    yield from torch.split(order, settings.batch_size)


def _write(
    out: Path,
    settings: PretrainingSettings,
    autoencoder: MaskedAutoencoder,
    encoder: Hart,
    labels: tuple[str, ...],
    statistics: ChannelStatistics,
) -> None:
    info = CheckpointInfo(
        model=settings.model.name,
        options=settings.model.options,
        labels=labels,
        input=InputSpec.windows(statistics.mean.tolist(), statistics.std.tolist()),
        method="mae",
        federation=f"pretrained-{settings.data}",
    )
    save_checkpoint(out, pretrained_state(autoencoder, encoder), info)


# ---- progress: the autoencoder, Adam's moments and steps, and what they belong to


def _keep(path: Path, settings: PretrainingSettings, autoencoder: MaskedAutoencoder, adam: Adam, epoch: int) -> None:
    moments = {str(index): dict(state) for index, state in adam.state_dict()["state"].items()}
    body = wire.encode({"model": dict(autoencoder.state_dict()), "adam": moments})
    head = {"settings": settings.model_dump(mode="json"), "epoch": epoch, "sha256": wire.digest(body)}
    header = json.dumps(head).encode()
    write_file(path, len(header).to_bytes(8, "little") + header + body)


def _resume(path: Path, settings: PretrainingSettings, autoencoder: MaskedAutoencoder, adam: Adam) -> int:
    """Take up what an earlier process left, and return the epochs that it did."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        body = data[8 + length :]
        if wire.digest(body) != header["sha256"]:
            raise WireError("its sha256 is not the one in its header")
        tree = wire.decode(body, limit_bytes=len(body))
    except (WireError, ValueError, KeyError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); delete it to begin again") from error
    if header["settings"] != settings.model_dump(mode="json"):
        raise RunDirectoryError(f"{path} is of other settings: {header['settings']}; choose another --out or delete it")
    autoencoder.load_state_dict(flatten(tree["model"]))
    state = {int(index): moments for index, moments in tree["adam"].items()}
    adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})
    return int(header["epoch"])
