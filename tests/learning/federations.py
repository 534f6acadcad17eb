"""Short federations on real recordings and images, and the scores that they end with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitway.window_cache import default_cache_dir
from sim.cli.options import build_experiment
from sim.data.federated_data import FederatedData
from sim.data.sources import get_source
from sim.experiment.settings import Experiment
from sim.presets import with_defaults
from sim.presets.preset import UNSCREENED
from sim.run import build_simulation, load_data, resolve

SMALL_HART = ("model.feature_dim=96", "model.blocks=3", "model.head_width=256")
SMALL_ALP = (*SMALL_HART, "model.prototypes=[64,32,16]")
SMALLEST_HART = ("model.feature_dim=48", "model.blocks=2", "model.head_width=128")


def settings_of(**options: Any) -> Experiment:
    """Return the settings of `python -m sim run` with these options; training on all training windows.

    In one process: others give the same numbers, and tests run beside each other, where forks only cost.
    """
    common = {"validation_share": 0.0, "engine": "serial", "normalization": "federated"}
    given = {**common, **options, "set": [*UNSCREENED, *options.get("set", ())]}
    chosen = with_defaults(None, given)
    return build_experiment(chosen, get_source(chosen["data"]).labels({}), None)


_READ: dict[tuple[str, Path | None], FederatedData] = {}


def loaded(settings: Experiment, root: Path | None, clients: int | None = None) -> FederatedData:
    """Read a run's examples, of the first `clients` clients; what several runs share is read once, its windows kept."""
    seed = settings.training.seed if settings.partition else 0  # recordings are split in time, without a draw
    key = f"{settings.model_dump_json(include={'data', 'dataset', 'dataset_options', 'partition'})} {seed}", root
    if key not in _READ:
        _READ[key] = load_data(resolve(settings), root, default_cache_dir(), None)
    return _READ[key] if clients is None else first_clients(_READ[key], clients)


def first_clients(data: FederatedData, count: int) -> FederatedData:
    """Keep the first clients by name."""
    chosen = sorted(data.clients)[:count]
    return replace(
        data,
        clients={name: data.clients[name] for name in chosen},
        statistics={name: data.statistics[name] for name in chosen},
    )


def scores(settings: Experiment, data: FederatedData) -> dict[str, float]:
    """Play a run in this process; macro-F1 in percent of its last round: personalization, global where there are."""
    *_, last = build_simulation(resolve(settings), data).run_rounds()
    return percentages(last)


def percentages(record: Mapping[str, Any]) -> dict[str, float]:
    """Read both scores off a round's record."""
    found = {"global": (record["global"] or {}).get("macro_f1")}
    if record["personalization"]:
        found["personalization"] = record["personalization"]["macro_f1"]["mean"]
    return {name: 100 * value for name, value in found.items() if value is not None}
