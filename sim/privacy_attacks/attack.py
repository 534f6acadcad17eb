"""All attacks on one round of a run, under every setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from federation.privacy.accounting import epsilon_of_discrete, spent
from sim.data.federated_data import FederatedData
from sim.errors import AnalysisError, SettingsError
from sim.experiment.settings import Experiment
from sim.privacy_attacks.attacked_round import At, AttackedRound, Progress, attacked_round
from sim.privacy_attacks.batch_labels import from_gradients
from sim.privacy_attacks.class_means import read_means
from sim.privacy_attacks.inversion import invert
from sim.privacy_attacks.label_recovery import from_updates
from sim.privacy_attacks.membership import infer_membership
from sim.privacy_attacks.observation import AttackResult, Setting, settings_of

Attack = Callable[[AttackedRound, Sequence[Setting], "AttackOptions", Progress], AttackResult]

ATTACKS: Mapping[str, Attack] = {
    "labels": lambda attacked, settings, options, progress: from_updates(attacked, settings, progress),
    "batch_labels": lambda attacked, settings, options, progress: from_gradients(attacked, settings),
    "inversion": lambda attacked, settings, options, progress: invert(
        attacked, settings, options.inversion_steps, progress
    ),
    "membership": lambda attacked, settings, options, progress: infer_membership(attacked, settings),
    "features": lambda attacked, settings, options, progress: read_means(attacked, settings),
}
"""Every attack by the name that `--only` takes."""


@dataclass(frozen=True)
class AttackOptions:
    """What is attacked, and how long."""

    at: At = "start"
    only: tuple[str, ...] = ()  # all, if empty
    noise: float = 1.0  # deviation of the sum's noise, in bounds of one device's norm
    devices: int = 24
    inversion_steps: int = 120

    def __post_init__(self) -> None:
        """Refuse what there is no attack of.

        Raises:
            SettingsError: naming the option.
        """
        unknown = [name for name in self.only if name not in ATTACKS]
        if unknown:
            raise SettingsError(f"--only {unknown[0]}: expected {', '.join(ATTACKS)}")
        if self.devices < 4:
            raise SettingsError(
                f"--devices {self.devices}: expected 4 or more, because half of them collude with the server"
            )
        if not 0 < self.noise <= 1e6:
            raise SettingsError(f"--noise {self.noise:g}: expected a number above 0, such as 1")


@dataclass(frozen=True)
class AttackResults:
    """What all attacks found; `missing` says of an attack that could not be made why."""

    settings: tuple[Setting, ...]
    attacks: Mapping[str, AttackResult]
    missing: Mapping[str, str]
    facts: Mapping[str, Any]  # of the attacked round
    refusal: str | None = None  # why the method has no secure sums

    def to_json(self) -> dict[str, Any]:
        """Return everything that a program may want to read."""
        return {
            "schema": 1,
            **self.facts,
            "secure_sums_refused": self.refusal,
            "settings": {setting.key: setting.label for setting in self.settings},
            "attacks": {key: result.to_json() for key, result in self.attacks.items()},
            "missing": dict(self.missing),
        }


def attack(
    settings: Experiment, data: FederatedData, run: Path | None, options: AttackOptions, progress: Progress
) -> AttackResults:
    """Attack a round of a run, whose directory is only needed for `at` "end".

    Raises:
        AnalysisError: if there is nothing to attack, or devices are too few.
    """
    torch.set_num_threads(settings.threads)
    attacked = attacked_round(settings, data, run, options.at, options.devices, progress)
    count = len(attacked.devices)
    if count < 4:
        raise AnalysisError(
            f"{count} devices have training examples; attacks need 4, because half of them collude with the server"
        )
    noise = settings.secure.noise_multiplier or options.noise
    chosen = settings_of(count, settings.secure.min_devices, noise)
    refusal = attacked.setup.method.sum_incompatibility
    if refusal:
        chosen = tuple(setting for setting in chosen if not setting.is_sum)
    results, missing = {}, {}
    for number, name in enumerate(options.only or ATTACKS):
        progress(f"attack: {name}", number, len(options.only or ATTACKS))
        try:
            results[name] = ATTACKS[name](attacked, chosen, options, progress)
        except AnalysisError as error:
            missing[name] = str(error)
    facts = {
        "method": attacked.setup.method.name,
        "model": settings.model.name,
        "data": settings.dataset,
        "round": attacked.number,
        "at": options.at,
        "devices": count,
        "noise_multiplier": noise,
        "epsilon_of_sum": round(epsilon_of_discrete(spent(noise), settings.rounds.delta), 2),
        "delta": settings.rounds.delta,
        "seed": attacked.seed,
    }
    return AttackResults(chosen, results, missing, facts, refusal)
