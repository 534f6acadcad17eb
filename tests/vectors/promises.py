"""Plans' privacy promises, what devices require, and what each end says of both: `python -m tests.vectors.promises`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from federation.plan import ModelSpec, Plan, SecureSettings, TrainingConfig
from federation.privacy.promises import PrivacyPromises, describe_promises, promises_of, required, shortfall

FILE = Path(__file__).with_name("promises.json")
KEY, OTHER_KEY = "q" * 43 + "=", "r" * 43 + "="
SECURE: tuple[dict[str, Any], ...] = (
    {},
    {"mode": "clear", "min_devices": 50},
    {"mode": "masked"},
    {"mode": "masked", "min_devices": 1200, "colluding_share": 0.3, "clip_norm": 10.0, "noise_multiplier": 1.1},
    {"mode": "masked", "min_devices": 50, "colluding_share": 1 / 3, "noise_multiplier": 1.1},
    {"mode": "masked", "voucher": KEY},
)
TRAINING: tuple[dict[str, Any], ...] = (
    {},
    {"example_clip_norm": 1.0, "example_noise_multiplier": 0.75},
    {"example_clip_norm": 1.0},
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"mode": "masked", "min_devices": 50},
    {"mode": "masked", "min_devices": 50, "min_colluding_share": 0.3, "min_noise": 1.1},
    {"min_example_noise": 0.8},
    {"min_colluding_share": 0.25, "min_noise": 0.5},
    {"mode": "off", "min_devices": 0, "min_noise": 0.0},
    {"voucher": OTHER_KEY},
)


def cases() -> list[dict[str, Any]]:
    """Return each plan against what was pinned by another one and set by the person."""
    plans = [plan_of(secure, training) for secure in SECURE for training in TRAINING]
    pins = [None, plans[3], plans[10], plans[15]]
    return [_case(plan, pinned, settings) for plan in plans for pinned in pins for settings in SETTINGS]


def plan_of(secure: dict[str, Any], training: dict[str, Any]) -> Plan:
    """Return a plan with these parts."""
    return Plan(
        labels=("still", "walking"),
        model=ModelSpec(name="har_cnn"),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=2, **training),
        secure=SecureSettings(**secure),
    )


def _case(plan: Plan, pinned: Plan | None, settings: dict[str, Any]) -> dict[str, Any]:
    pin = promises_of(pinned) if pinned else None
    needed, promised = required(pin, PrivacyPromises(**settings)), promises_of(plan)
    return {
        "secure": plan.secure.model_dump(mode="json"),
        "training": {name: getattr(plan.training, name) for name in ("example_clip_norm", "example_noise_multiplier")},
        "pinned": pin and pin.model_dump(),
        "settings": settings,
        "promised": promised.model_dump(),
        "required": needed.model_dump(),
        "shortfall": shortfall(promised, needed),
        "words": describe_promises(needed),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), indent=1) + "\n")
