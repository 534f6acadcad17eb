"""Typed reading of what `python -m sim run` wrote, finished or not; the only reader of these files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from sim.errors import RunDirectoryError

T = TypeVar("T")


class Record(BaseModel):
    """An immutable part of a file; keys that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, protected_namespaces=())


class MeanStd(Record):
    """Mean and population standard deviation over clients."""

    mean: float
    std: float


class Spread(Record):
    """Scores over clients, each between 0 and 1."""

    macro_f1: MeanStd
    accuracy: MeanStd


def _none_for_nan(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


class Plain(Record):
    """Scores of one model on one set; None where the set was empty."""

    macro_f1: Annotated[float | None, BeforeValidator(_none_for_nan)]
    accuracy: Annotated[float | None, BeforeValidator(_none_for_nan)]


class Config(Record):
    """`config.json`: all that the numbers depend on, and where they were made."""

    schema_version: int = Field(alias="schema")
    data: str
    data_options: dict[str, Any] = {}
    pipeline: dict[str, Any] = {}
    model: str
    model_options: dict[str, Any] = {}
    method: dict[str, Any]
    task: dict[str, Any]
    rounds: dict[str, Any]
    engine: str
    chunk: int = 1
    device: str = "cpu"
    threads: int = 1
    eval_every: int = 1
    split: str
    split_leaks: bool
    normalization: str
    labels: tuple[str, ...]
    preset: str | None = None
    versions: dict[str, str] = {}
    hardware: str = ""
    parameters: dict[str, int] = {}

    @model_validator(mode="before")
    @classmethod
    def _unfold_model(cls, value: Any) -> Any:
        """Take a model written as {name, options} apart."""
        if isinstance(value, dict) and isinstance(model := value.get("model"), dict):
            return {**value, "model": model.get("name"), "model_options": model.get("options", {})}
        return value

    @property
    def method_name(self) -> str:
        """Name of the federated method."""
        return str(self.method["name"])

    @property
    def planned_rounds(self) -> int:
        """Rounds that the run was asked for."""
        return int(self.rounds["rounds"])

    @property
    def seed(self) -> int:
        """Seed of partitions, cohorts, initial weights and batch orders."""
        return int(self.task.get("seed", 0))


class ClientExamples(Record):
    """One line of `clients.json`: examples by part and class."""

    train: int
    test: int
    train_per_class: tuple[int, ...]
    test_per_class: tuple[int, ...]


class RoundRecord(Record):
    """One line of `rounds.jsonl`; `bytes_*` are means over the round's clients."""

    round: int
    cohort: tuple[str, ...]
    train_loss: float
    evaluated: bool
    personalization: Spread | None = None
    generalization: Spread | None = None
    global_: Plain | None = Field(default=None, alias="global")
    bytes_up: float
    bytes_down: float
    seconds: dict[str, float]


class Summary(Record):
    """`summary.json`, which exists once the last round is done."""

    clients: int
    rounds: int
    seed: int
    best_round: int
    personalization: Spread
    generalization: Spread
    global_: Plain | None = Field(default=None, alias="global")
    global_at_last_round: Plain | None = None
    seconds: dict[str, float]
    bytes_up: float
    bytes_down: float


class ClientScore(Record):
    """One client's entry of `client_scores.json`, at the best round."""

    personalization: Plain | None = None
    generalization: Plain | None = None
    train: int
    test: int


Counts = tuple[tuple[int, ...], ...]


class Confusions(Record):
    """Counts (C, C) summed over clients: rows true, columns predicted."""

    personalization: Counts | None = None
    generalization: Counts | None = None
    global_: Counts | None = Field(default=None, alias="global")


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory; every file but `config.json` may be missing while the run goes on.

    Raises RunDirectoryError on opening if `path` holds no readable `config.json`, and on reading a damaged file.
    """

    path: Path

    def __post_init__(self) -> None:
        """Fail early on a directory that is not a run's."""
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / "config.json").is_file():
            came = "has no config.json" if self.path.is_dir() else "is not a directory"
            raise RunDirectoryError(f"{self.path} {came}; expected the --out of `python -m sim run`")
        if (version := self.config.schema_version) != 1:
            raise RunDirectoryError(f"{self.path / 'config.json'} has schema {version}; this version reads schema 1")

    @cached_property
    def config(self) -> Config:
        """The run's settings."""
        return self._require("config.json", Config)

    @cached_property
    def clients(self) -> Mapping[str, ClientExamples]:
        """Examples of each client; empty before the data is prepared."""
        return self._read("clients.json", dict[str, ClientExamples]) or {}

    @cached_property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds done so far, in order; a last line that a kill cut short of its newline is left out."""
        path = self.path / "rounds.jsonl"
        if not path.is_file():
            return ()
        whole = path.read_text("utf-8").rpartition("\n")[0]
        adapter = TypeAdapter(RoundRecord)
        return tuple(
            _parse(adapter, line, f"{path}, line {number}") for number, line in enumerate(whole.splitlines(), 1)
        )

    @cached_property
    def summary(self) -> Summary | None:
        """The final scores; None until the run is finished."""
        return self._read("summary.json", Summary)

    @cached_property
    def client_scores(self) -> Mapping[str, ClientScore]:
        """Scores of each client at the best round; empty until the run is finished."""
        return self._read("client_scores.json", dict[str, ClientScore]) or {}

    @cached_property
    def confusions(self) -> Confusions:
        """Confusion matrices at the best round; all None until the run is finished."""
        return self._read("confusion.json", Confusions) or Confusions()

    @property
    def finished(self) -> bool:
        """Whether the last round is done and summarized."""
        return self.summary is not None

    @property
    def evaluated_rounds(self) -> tuple[RoundRecord, ...]:
        """The rounds that have scores."""
        return tuple(record for record in self.rounds if record.personalization is not None)

    def _read(self, name: str, kind: type[T]) -> T | None:
        return self._require(name, kind) if (self.path / name).is_file() else None

    def _require(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        return _parse(TypeAdapter(kind), path.read_text("utf-8"), str(path))


def _parse(adapter: TypeAdapter[T], text: str, where: str) -> T:
    """Read JSON, or say which key of which file is wrong and what came."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunDirectoryError(f"{where}: {key}: {first['msg']}; the file is damaged or not a run's") from error
