"""What a comparison consists of, and which settings forbid or qualify one; the layout of comparison.json."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from federation.tasks import TASKS
from gaitway.tasks import Metric
from sim.experiment.settings import OPTIONS
from sim.results.run_directory import RunDirectory
from sim.results.statistics import PairedTest, Ranking
from sim.scores.records import Selection

SCORES = ("personalization", "worst", "generalization", "global")
NEW_CLIENTS = "new_clients_"
"""Begins the columns, one for each k, of clients that took no part, after the first k examples of each class."""
ROUND_SCORES = ("personalization", "global")
"""The scores that runs have after every round."""
PAIRED = ("personalization", "generalization", "global_per_client")
"""The scores that are tested: those that every client has one of, so that their spread over clients is known."""


def columns_of(metrics: Iterable[str], scores: Sequence[str] = SCORES) -> tuple[str, ...]:
    """Name the columns of these metrics, such as `personalization.macro_f1`, metric by metric."""
    return tuple(f"{score}.{metric}" for metric in metrics for score in scores)


@dataclass(frozen=True)
class ComparedScore:
    """One metric of one score; `clients_std` is the mean over seeds of the std over clients."""

    mean: float
    clients_std: float | None = None
    seeds_std: float | None = None


@dataclass(frozen=True)
class Curve:
    """Mean over seeds of the primary metric, by round, and the bytes that all clients together had moved by then."""

    rounds: tuple[int, ...]
    moved_bytes: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SelectionScores:
    """The rounds that a way of choosing them chose in a row's runs, and their scores."""

    rounds: tuple[int, ...]
    scores: Mapping[str, ComparedScore | None]


@dataclass(frozen=True)
class Row:
    """One configuration, over its seeds; bytes are per client and round, seconds per run.

    `train_seconds` are of one client's local round, `client_bytes` what it holds meanwhile.

    `scores`, `ranks`, `tests` and `chosen_rounds` are of the comparison's selection; `selected` has the rounds and the
    scores of every selection that all of the row's runs have. `tests` are against the row `baseline`, None for a
    baseline itself; a `reference` sees what no federation can, and takes no part in the ranks.
    """

    label: str
    method: str
    model: str
    reference: bool
    seeds: tuple[int, ...]
    directories: tuple[str, ...]
    clients: int
    rounds: int
    chosen_rounds: tuple[int, ...]
    scores: Mapping[str, ComparedScore | None]
    ranks: Mapping[str, int]
    bytes_up: float
    bytes_down: float
    seconds: float
    train_seconds: float | None
    client_bytes: float | None
    curves: Mapping[str, Curve]
    selected: Mapping[Selection, SelectionScores]
    baseline: str | None = None
    tests: Mapping[str, PairedTest] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Runs of one task that were tested on the same examples, with one family of models.

    They are unranked where `refused` gives a reason. `where` names the settings that tell this group from others of the
    same data and family.
    """

    task: str
    data: str
    model: str
    where: str
    rows: tuple[Row, ...]
    refused: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The task's metrics, the primary one first."""
        return TASKS[self.task].metric_kinds

    @property
    def primary(self) -> str:
        """The name of the task's primary metric."""
        return TASKS[self.task].primary_metric

    def metric_of(self, column: str) -> Metric:
        """Return the metric of a column."""
        return self.metrics[column.split(".")[1]]

    @property
    def title(self) -> str:
        """The group's name in tables and figures."""
        networks = ", ".join(dict.fromkeys(row.model for row in self.rows))
        return f"{self.data} · {networks}" + (f" · {self.where}" if self.where else "")


@dataclass(frozen=True)
class OverDatasets:
    """Ranks of methods over the data sets that all of them ran on, by one score, with one family of models."""

    task: str
    model: str
    column: str
    datasets: tuple[str, ...]
    ranking: Ranking


@dataclass(frozen=True)
class Comparison:
    """All groups, by the scores of one selection; `warnings` name the runs left out, and what was kept apart."""

    groups: tuple[Group, ...]
    selection: Selection
    over_datasets: tuple[OverDatasets, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = field(default=3, init=False)


_DERIVED = frozenset(
    {"parameters", "split_leaks", "findings", "versions", "hardware", "schema_version", "preset", "rollout"}
)
# What changes neither the data, nor the training, nor the scores beyond float order.
_ENVIRONMENT = frozenset(name for name, option in OPTIONS.items() if option.affects in ("environment", "measurement"))
# Runs that differ here were tested on other examples, so no rank between them means anything.
_TESTED_ON = frozenset(option.path[-1] for option in OPTIONS.values() if option.affects == "data") - {"dataset"} | {
    *("dataset_options", "pipeline", "test_share", "labels", "task")
}
# What a row is: runs that differ elsewhere, in how they were trained, can be ranked, but not by their method alone.
_ROW = frozenset({"dataset", "method", "model", "alternatives"})

Settings = dict[str, Any]
Runs = Sequence[RunDirectory]


def settings_of(run: RunDirectory) -> Settings:
    """Return all settings but the seed and the environment, as `section.key`."""
    settings = {key: value for key, value in run.config.by_section().items() if key not in _ENVIRONMENT | _DERIVED}
    settings["init"] = _starting_point(settings.get("init"), run.config.seed)
    model = settings.pop("model")
    flat = _flat({**settings, "model": model["name"], "model_options": model["options"]})
    flat.pop("training.seed", None)
    return flat


def _starting_point(init: Mapping[str, Any] | None, seed: int) -> str | None:
    """Name the weights that a run starts from; those that its own seed made are one starting point for all seeds.

    They are where the file's path says the seed: of runs/masked-0 and runs/masked-1 both are runs/masked-SEED.
    """
    if init is None:
        return None
    before, found, after = str(init["path"]).rpartition(str(seed))
    stands_alone = found and not before[-1:].isdigit() and not after[:1].isdigit()
    return f"{before}SEED{after}" if stands_alone else f"{init['path']} (sha256 {init['sha256'][:12]})"


def _flat(value: Mapping[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else {f"{prefix}{key}": inner}
    return flat


def _section(key: str) -> str:
    return key.split(".")[0]


def tested_on(run: RunDirectory) -> Settings:
    """Return the settings that decide which examples are tested on."""
    return {key: value for key, value in sorted(settings_of(run).items()) if _section(key) in _TESTED_ON}


def training_differences(first: RunDirectory, second: RunDirectory) -> list[str]:
    """Name the settings of the training, apart from method and model, in which two runs differ."""
    ours, theirs = settings_of(first), settings_of(second)
    return [key for key in _training_keys([first, second]) if repr(ours.get(key)) != repr(theirs.get(key))]


def _training_keys(runs: Iterable[RunDirectory]) -> list[str]:
    keys = {key for run in runs for key in settings_of(run)}
    keys = {key for key in keys if _section(key) not in _TESTED_ON | _ROW}
    # a network without ALP has none of its options
    return sorted(key for key in keys if not key.startswith(("model_options.alp", "model_options.placement")))


def written(settings: Settings, keys: Iterable[str]) -> str:
    """Write some settings as `key=value, …`, each key without its section."""
    return ", ".join(f"{key.rpartition('.')[2]}={settings.get(key)}" for key in keys)


def labels_of(runs: Runs) -> list[str]:
    """Name rows by method, and by the settings that tell the rows of one method apart."""
    labels = []
    for run in runs:
        own = settings_of(run)
        twins = [settings_of(other) for other in runs if other.config.method_name == run.config.method_name]
        keys = {key: None for twin in [own, *twins] for key in twin}
        apart = [key for key in keys if key != "model" and len({repr(twin.get(key)) for twin in twins}) > 1]
        distinct = written(own, apart)
        labels.append(f"{run.config.method_name} ({distinct})" if distinct else run.config.method_name)
    return labels


def refusals(members: Sequence[Runs]) -> tuple[str, ...]:
    """Return why these rows cannot be ranked at all."""
    runs = [run for same in members for run in same]
    reasons = []
    for seed in sorted({run.config.seed for run in runs}):
        tested = {repr(_test_examples(run)) for run in runs if run.config.seed == seed}
        if len(tested) > 1:
            reasons.append(f"the clients or their test examples differ between runs of seed {seed}")
    return tuple(reasons)


def _test_examples(run: RunDirectory) -> dict[str, tuple[int, ...]]:
    """Count by client and class, without clients that only train, such as the one that pools all data."""
    return {name: client.test_per_class for name, client in sorted(run.clients.items()) if client.test}


def warnings_of(labels: Sequence[str], members: Sequence[Runs]) -> tuple[str, ...]:
    """Return what a reader must know before believing a rank."""
    pairs = [(label, runs[0]) for label, runs in zip(labels, members, strict=True)]
    notes = [_differs(key, pairs) for key in _training_keys(run for _, run in pairs)]
    seeds = {label: tuple(run.config.seed for run in runs) for label, runs in zip(labels, members, strict=True)}
    if len(set(seeds.values())) > 1:
        notes.append("seeds differ: " + "; ".join(f"{label}: {_listed(seed)}" for label, seed in seeds.items()))
    if len({(run.config.hardware, run.config.engine) for runs in members for run in runs}) > 1:
        notes.append("seconds come from different hardware or engines and must not be compared")
    for split in sorted({run.config.data.split for runs in members for run in runs if run.config.split_leaks}):
        notes.append(f"the split {split!r} leaks: overlapping windows are in training and test")
    return tuple(note for note in notes if note)


def _differs(key: str, pairs: Iterable[tuple[str, RunDirectory]]) -> str:
    """Say which rows have which value of a setting, or nothing where all agree."""
    rows: dict[str, list[str]] = defaultdict(list)
    for label, run in pairs:
        rows[str(settings_of(run).get(key))].append(label)
    if len(rows) < 2:
        return ""
    return f"{key} differs: " + "; ".join(f"{value} ({_listed(dict.fromkeys(who))})" for value, who in rows.items())


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
