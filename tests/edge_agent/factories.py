"""A small federation for the tests of the device: a plan, announcements, a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_agent.config.settings import (
    AgentSection,
    BrokerSection,
    ConditionsSection,
    Config,
    SensorsSection,
    ServerSection,
    TrainingSection,
)
from federation.plan import ModelSpec, Plan, RoundSettings, TrainingConfig
from federation.protocol.messages import Announcement, BlobPointer, Invitation
from har_pipeline import dataset_labels

DEVICE = "s00_phone100-waist"
OPTIONS: dict[str, Any] = {"subjects": 1, "phones": ["phone100"], "places": ["waist"], "minutes": 2.0}
INSTANCE = "0" * 32
SMALL: dict[str, Any] = {"channels": [8, 8], "feature_dim": 16}


def make_plan(
    method: str = "fedavg",
    model: str = "har_cnn",
    *,
    seed: int = 1,
    late: str = "drop",
    optimizer: str = "adam",
    alternatives: tuple[ModelSpec, ...] = (),
    **options: Any,
) -> Plan:
    labels = dataset_labels("synthetic")
    return Plan(
        labels=labels,
        model=ModelSpec(name=model, options={**SMALL, **options}),
        alternatives=alternatives,
        method={"name": method},
        training=TrainingConfig(
            classes=len(labels),
            feature_dim=16,
            epochs=2,
            batch_size=16,
            optimizer=optimizer,
            lr=1e-2,
            seed=seed,
        ),
        rounds=RoundSettings(rounds=3, late=late),
    )


def pointer(letter: str = "a") -> BlobPointer:
    return BlobPointer(sha256=letter * 64, size=10, url=f"/v1/blobs/{letter * 64}")


def announcement(
    round_number: int = 1, state: str = "collecting", model: str | None = "a", **fields: Any
) -> Announcement:
    """What the server says to all; one instance of the federation if no `instance` is given."""
    values: dict[str, Any] = {"plan": make_plan(), "created": 0.0, "federation": "demo", "instance": INSTANCE, **fields}
    return Announcement(state=state, round=round_number, model=model and pointer(model), **values)


def invitation(round_number: int = 1, model: str = "a", instance: str = INSTANCE) -> Invitation:
    return Invitation(instance=instance, round=round_number, model=pointer(model))


def make_config(folder: Path, model: str | None = None, **training: Any) -> Config:
    return Config(
        agent=AgentSection(device=DEVICE, federation="demo", data_dir=folder, model=model),
        server=ServerSection(url="http://127.0.0.1:9"),
        broker=BrokerSection(host="127.0.0.1", port=9),
        sensors=SensorsSection(options=OPTIONS),
        training=TrainingSection(**training),
        conditions=ConditionsSection(ignore=("all",)),
    )


PLANS = {
    "fedavg": make_plan(),
    "fedali": make_plan("fedali", "har_cnn_alp", prototypes=[8]),
}
