"""What a named starting point is, and how options are laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from federation.methods import METHODS
from sim.data.scaling import scaled_rounds
from sim.errors import SettingsError

Options = Mapping[str, Any]

DEFAULTS: dict[str, Any] = {
    "data": "synthetic",
    "partition": None,
    "clients_by": "client",
    "split": "temporal",
    "validation_share": 0.1,
    "normalization": "federated",
    "holdout": None,
    "scale": 1.0,
    "model": "cnn",
    "init": None,
    "method": "fedavg",
    "rounds": 10,
    "epochs": 1,
    "batch": 64,
    "lr": 1e-3,
    "optimizer": "adam",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clients_per_round": None,
    "sampling": "uniform",
    "stragglers": 0.0,
    "precision": "lossless",
    "autocast": "float32",
    "seed": 0,
    "engine": "auto",
    "workers": None,
    "chunk": None,
    "compile": False,
    "client_store": "auto",
    "device": "cpu",
    "threads": 1,
    "eval_every": 1,
    "generalization_examples": None,
    "gradient_dissimilarity": False,
    "set": [],
}
"""Every option of `sim run` that a preset may set, under its name on the command line."""


SMALL_DATA = "Data at hand"
"""In the place of a paper: experiments of our own."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Data, partition, model and task of an experiment; the method is whatever the user asks for.

    `by_method` holds what the paper changes with the method: FedAli's network has ALP layers, every proximal term has
    its own μ. `pretraining` names the recordings that the network was pretrained on without labels: a run of such a
    preset takes the weights that `sim pretrain` wrote.
    """

    paper: str
    about: str
    clients: int
    needs: str
    options: Options
    by_method: Mapping[str, Options] = field(default_factory=dict)
    pretraining: str | None = None

    @property
    def own_options(self) -> Options:
        """The options; a paper chooses the best round by test, so its presets set nothing aside for validation."""
        return self.options if self.paper == SMALL_DATA else {"validation_share": 0.0, **self.options}

    @property
    def rounds(self) -> int:
        """Rounds of the default method."""
        return int(self.options_for(self.options["method"])["rounds"])

    def options_for(self, method: str) -> dict[str, Any]:
        """Return the options with what this method changes laid over them."""
        return {**self.options, **self.by_method.get(method, {})}

    def pretraining_command(self, model: str) -> str:
        """Return the command that writes the weights which a run starts from."""
        return f"python -m sim pretrain --data {self.pretraining} --data-root FOLDER --model {model} --out FILE"


def merge_options(preset: Preset | None, given: Options) -> dict[str, Any]:
    """Lay the given options over the preset's, and those over the defaults; `set` accumulates.

    Where defaults and preset have an optimizer that the method does not start with, its own takes that one's place.

    A scale shrinks the rounds too, unless they are given.

    Raises:
        SettingsError: if the preset starts from pretrained weights, and none are given.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    own = preset.own_options if preset else {}
    method: str = {**DEFAULTS, **own, **chosen}["method"]
    by_method = (preset.by_method if preset else {}).get(method, {})
    unasked = {**DEFAULTS, **own, **by_method}
    layers = [DEFAULTS, own, by_method, optimizer_of(method, unasked["optimizer"]), chosen]
    options = {name: value for layer in layers for name, value in layer.items()}
    options["set"] = [text for layer in layers for text in layer.get("set", [])]
    if preset and preset.pretraining and options["init"] is None:
        command = preset.pretraining_command(options["model"])
        raise SettingsError(
            f"this preset starts from pretrained weights: give --init FILE, which this makes: {command}"
        )
    if "rounds" not in chosen:
        options["rounds"] = scaled_rounds(options["rounds"], options["scale"])
    return options


def optimizer_of(method: str, otherwise: str) -> Options:
    """Return the optimizer and learning rate that a method starts with; {} where it would start with any, or that."""
    known = METHODS.get(method)
    if known is None or known.default_optimizer in (None, otherwise):
        return {}
    return {"optimizer": known.default_optimizer, "lr": known.default_lr}
