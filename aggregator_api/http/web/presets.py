"""Starting points of the form that creates a federation; every field can be changed afterwards."""

from __future__ import annotations

from typing import NamedTuple, get_args

from aggregator_api.rollouts.schedules import SCHEDULES, STANDARD, release_settings
from federation.plan import Normalization

RELEASES: dict[str, tuple[str, dict[str, object]]] = {
    **{
        name: (f"in waves, by itself: {schedule.label}", release_settings("automatic", name))
        for name, schedule in SCHEDULES.items()
    },
    "manual": ("in waves, when an operator rolls a version out", release_settings("manual")),
    "off": ("each device uses what it trained itself, and in the end the last version", release_settings("off")),
}
"""How models reach devices: the words of the choice, and a plan's `rollout`."""
NORMALIZATIONS = tuple(
    choice for choice in get_args(Normalization) if choice != "pooled"
)  # which only a simulation can

ACTIVITIES = "sitting\nstanding\nwalking\nclimbingup\nclimbingdown\nrunning"
"""What most data sets of phones have in common."""


class FormPreset(NamedTuple):
    """What a preset is for, in a line, and the fields that it fills in; the others keep the plan's defaults."""

    description: str
    fields: dict[str, str]


PRESETS: dict[str, FormPreset] = {
    "exact": FormPreset(
        "The first choice: exact sums of features of raw windows. No rounds: a device sends when it has something new, "
        "phones and boards alike, and a version without it follows when it leaves. What the fields below say of rounds "
        "and training means nothing to it.",
        {
            "labels": ACTIVITIES,
            "model": "har_features",
            "method": "analytic",
            "normalization": "none",
            "further": "[publication]\ninterval_s = 60\nmin_changes = 1",
            # each version is a sum over all devices, which take up the newest: a wave would only make it late
            "release": "off",
        },
    ),
    "first": FormPreset(
        "A first federation in rounds: FedAvg on a small CNN, three short rounds; one device is enough.",
        {"labels": ACTIVITIES, "model": "har_cnn", "method": "fedavg", "rounds": "3", "epochs": "5"},
    ),
    "adaptive": FormPreset(
        "HART with ALP layers (Alignment with Prototypes), as in FedAli (Ek et al. 2024): 50 rounds of five epochs.",
        {"labels": ACTIVITIES, "model": "hart_alp", "method": "fedali", "rounds": "50", "epochs": "5"},
    ),
    "personal": FormPreset(
        "Each device keeps its own head (FedPer): the shared part alone travels, and there is no global model.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedper",
            "rounds": "20",
            "epochs": "5",
            "release": "off",
        },
    ),
    "fleet": FormPreset(
        "A large fleet: 50 devices a round, a quarter more invited, closed after an hour; late updates count next.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "rounds": "100",
            "epochs": "2",
            "clients_per_round": "50",
            "minimum_clients": "20",
            "deadline_s": "3600",
            "further": '[rounds]\nover_selection = 1.25\nlate = "next"',
            "release": "careful",
        },
    ),
    "private": FormPreset(
        "Secure sums: the server learns the sum of a round's updates, and no single one. Needs three enrolled devices, "
        "phones or boards.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "secure": "masked",
            "rounds": "20",
            "epochs": "2",
            "minimum_clients": "3",
            "deadline_s": "3600",
        },
    ),
    "robust": FormPreset(
        "Devices that cannot all be trusted: the coordinate-wise median, and updates that go too far left out.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "rounds": "20",
            "epochs": "2",
            "minimum_clients": "5",
            "further": '[method]\naggregation = "median"\n\n[rounds]\nnorm_factor = 5.0',
        },
    ),
}
FIRST = "exact"
EMPTY = {
    "name": "",
    "labels": "",
    "model": "",
    "method": "",
    "rounds": "10",
    "epochs": "1",
    "batch_size": "64",
    "lr": "0.001",
    "clients_per_round": "",
    "minimum_clients": "1",
    "deadline_s": "",
    "normalization": "client",
    "release": STANDARD,
    "secure": "off",
    "further": "",
    "start_federation": "",
    "start_version": "",
    "start_checkpoint": "",
}
"""The form's fields, with the plan's own defaults."""


def filled(preset: str) -> dict[str, str]:
    """Return the form's fields as a preset fills them in; an unknown one is the first."""
    return {**EMPTY, **PRESETS.get(preset, PRESETS[FIRST]).fields}
