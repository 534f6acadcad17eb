"""Presets: named starting points, overridden by options, and described in TOML.

Entries share parts, and families have members that differ in the cells of a matrix::

    paper = "Tan et al. 2022"

    [part.training.options]
    lr = 0.01

    [[preset]]
    name = "tan2022-{data}-{ways}"
    matrix = [[{ data = "mnist" }, { data = "femnist" }], [{ ways = 3 }, { ways = 4 }]]
    parts = ["training"]
    options = { data = "{data}", set = ["partition.ways={ways}"] }

A family has one preset for each combination of a cell from each row of its matrix, the last row varying fastest. What
the cells name stands for `{name}` in any text; a text that is nothing else becomes the value itself. Keys of an entry
are laid over those of its parts, in their order: sections are merged, and lists follow one another.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from federation.methods import METHODS
from federation.plan import DataSpec
from sim.data.selection import scaled_rounds
from sim.experiment.settings import DEFAULTS

Options = Mapping[str, Any]

UNSCREENED = ("rounds.max_weight_ratio=null", "rounds.norm_factor=null")
"""What every preset sets: clients are honest, and methods compute what their papers say.

Without a preset both rules of `federation.aggregation.screening` are on, as they are on a server.
"""


SMALL_DATA = "Data at hand"
"""In the place of a paper: experiments of our own."""

NONE_KNOWN = "none known"
"""What a paper's preset has for departures where it was compared with paper and code, and none was found."""


class Reported(NamedTuple):
    """What a paper says of its partition: all examples, and their mean and deviation over clients."""

    examples: int
    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Data, partition, model and training of an experiment; the method is whatever the user asks for.

    `by_method` holds what the paper changes with the method: FedAli's network has ALP layers, every proximal term has
    its own μ. `pretraining` names the recordings that the network was pretrained on without labels: a run of such a
    preset takes the weights that `sim pretrain` wrote. `pretrained_by` names instead the preset of a federation that
    pretrains it, whose run it starts from. `reported` is what the paper says of its clients' examples, and `where` says
    where the data are had. `departures` say where the preset, or the method under it, differs from the paper or from
    its authors' code, and where those two differ; a paper's preset has some, or `NONE_KNOWN`.
    """

    paper: str
    about: str
    clients: int
    needs: str
    options: Options
    by_method: Mapping[str, Options] = field(default_factory=dict)
    pretraining: str | None = None
    pretrained_by: str | None = None
    reported: Reported | None = None
    departures: tuple[str, ...] = ()
    where: str = ""

    @property
    def own_options(self) -> Options:
        """The options, with what all presets have: federated normalization, and no screening.

        A paper chooses the best round by test, so its presets set nothing aside for validation.
        """
        common = {} if self.paper == SMALL_DATA else {"validation_share": 0.0}
        chosen = {"normalization": "federated", **common, **self.options}
        return {**chosen, "set": [*UNSCREENED, *chosen.get("set", ())]}

    @property
    def rounds(self) -> int:
        """Rounds of the default method."""
        return int(self.options_for(self.options["method"])["rounds"])

    def options_for(self, method: str) -> dict[str, Any]:
        """Return the options with what this method changes laid over them."""
        return {**self.options, **self.by_method.get(method, {})}

    def pretraining_options(self, model: str) -> dict[str, Any]:
        """Return what a pretraining of a model takes from this plan: normalization, windows and the network's options.

        An option of the network counts that the plan sets for methods with such a model.
        """
        own = self.own_options
        by_method = next((entry for entry in self.by_method.values() if entry.get("model", own["model"]) == model), {})
        texts = [*own["set"], *by_method.get("set", ())]
        return {
            "normalization": own["normalization"],
            "set": [text for text in texts if text.startswith(("pipeline.", "model."))],
        }

    def pretraining_command(self, name: str, method: str, model: str) -> str | None:
        """Return the command that makes the weights which a run starts from; None where they are drawn.

        `name` is the preset's.
        """
        if self.pretrained_by is not None:
            same = f"--method {method} --model {model} --data-root FOLDER --out FILE"
            return f"python -m sim run --preset {self.pretrained_by} {same}"
        if self.pretraining is not None:
            return f"python -m sim pretrain --for {name} --data-root FOLDER --model {model} --out FILE"
        return None


def merge_options(preset: Preset | None, given: Options, plan: Options | None = None) -> dict[str, Any]:
    """Lay the given options over a plan's or the preset's, and those over the defaults; `set` accumulates.

    Where defaults and preset have an optimizer that the method does not start with, its own takes that one's place.

    A scale shrinks the rounds too, unless they are given.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    own = _for_data(preset.own_options, chosen.get("data")) if preset else {}
    planned = plan or {}
    method: str = {**DEFAULTS, **own, **planned, **chosen}["method"]
    by_method = (preset.by_method if preset else {}).get(method, {})
    unasked = {**DEFAULTS, **own, **by_method}
    layers = [DEFAULTS, own, by_method, optimizer_of(method, unasked["optimizer"]), planned, chosen]
    options = {name: value for layer in layers for name, value in layer.items()}
    options["set"] = [text for layer in layers for text in layer.get("set", [])]
    if "rounds" not in chosen and "rounds" not in planned:
        options["rounds"] = scaled_rounds(options["rounds"], options["scale"])
    return options


def _for_data(own: Options, data: str | None) -> Options:
    """Leave out what a preset sets of its data where others are asked for, whose options have other names."""
    if data in (None, own.get("data")):
        return own
    plans = tuple(f"data.{name}=" for name in DataSpec.model_fields)
    texts = own.get("set", ())
    return {**own, "set": [text for text in texts if not text.startswith("data.") or text.startswith(plans)]}


def optimizer_of(method: str, otherwise: str) -> Options:
    """Return the optimizer and learning rate that a method starts with; {} where it would start with any, or that."""
    known = METHODS.get(method)
    if known is None or known.traits.optimizer in (None, otherwise):
        return {}
    return {"optimizer": known.traits.optimizer, "lr": known.traits.lr}


Entry = dict[str, Any]
PLACE = re.compile(r"\{(\w+)\}")


def read_presets(text: str) -> dict[str, Preset]:
    """Return the presets of a file by name, in its order."""
    document = tomllib.loads(text)
    parts = document.get("part", {})
    entries = (member for entry in document["preset"] for member in _family(entry, parts))
    return {entry.pop("name"): _preset({"paper": document["paper"], **entry}) for entry in entries}


def _family(entry: Entry, parts: Mapping[str, Entry]) -> Iterator[Entry]:
    for cells in product(*entry.get("matrix", [])):
        values = {name: value for cell in cells for name, value in cell.items()}
        merged = _with_parts(entry, parts, values)
        yield _filled(merged, values)


def _with_parts(entry: Entry, parts: Mapping[str, Entry], values: Entry) -> Entry:
    """Lay an entry over its parts, and those over theirs."""
    merged: Entry = {}
    for name in entry.get("parts", []):
        merged = _laid_over(_with_parts(parts[_filled(name, values)], parts, values), merged)
    return _laid_over({key: value for key, value in entry.items() if key not in ("parts", "matrix")}, merged)


def _laid_over(upper: Entry, lower: Entry) -> Entry:
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _laid_over(value, below)
        elif isinstance(value, list) and isinstance(below, list):
            merged[key] = [*below, *value]
        else:
            merged[key] = value
    return merged


def _filled(value: Any, values: Entry) -> Any:
    """Put the values of a family's cells where they are named."""
    if isinstance(value, dict):
        return {_filled(key, values): _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if not isinstance(value, str):
        return value
    whole = PLACE.fullmatch(value)
    return values[whole[1]] if whole else PLACE.sub(lambda place: str(values[place[1]]), value)


def _preset(fields: Entry) -> Preset:
    reported = fields.pop("reported", None)
    departures = tuple(fields.pop("departures", ()))
    return Preset(**fields, departures=departures, reported=None if reported is None else Reported(**reported))
