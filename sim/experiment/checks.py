"""What a run refuses before it begins: settings that do not go together, or that the data do not meet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from federation.method import Method
from federation.plan import RoundSettings, SecureSettings, window_change_incompatibility
from federation.privacy.accounting import epsilon_of_epochs, epsilon_of_rounds
from federation.privacy.differential_privacy import check_private
from federation.records import Examples
from federation.secure_sums.summation import check_secure
from federation.training.augmentation import check_images
from federation.training.prediction import task_mismatch
from federation.training.window_changes import check_windows
from sim.errors import SettingsError
from sim.experiment.networks import Architecture
from sim.experiment.settings import DEFAULTS, Experiment


def check_settings(settings: Experiment, method: Method) -> None:
    """Refuse settings that do not go together, whatever the data are; `method` is the one that they name.

    Raises:
        SettingsError: naming the option.
    """
    if settings.alternatives and not method.mixes_architectures:
        names = " + ".join(spec.name for spec in settings.models)
        raise SettingsError(f"{method.name} needs one model for all clients, {names} came; mix them with fedproto")
    if settings.analyses != "none" and settings.baseline != "none":
        raise SettingsError(f"--analyses {settings.analyses}: --baseline {settings.baseline} has no network to analyse")
    if reason := window_change_incompatibility(settings):
        raise SettingsError(reason)
    if settings.attack == "none" and settings.attackers not in (0.0, DEFAULTS["attackers"]):
        raise SettingsError(f"--attackers {settings.attackers:g}: say with --attack what they do, or leave it out")
    if settings.baseline != "none":
        _check_baseline(settings)
    has_secure_sums = settings.secure.is_on
    if has_secure_sums:
        check_secure(method, settings.rounds, settings.secure)
        if settings.precision != "lossless":
            raise SettingsError(
                f"secure.mode={settings.secure.mode}: whole numbers with masks travel as they are; set --precision "
                "lossless"
            )
    check_private(method, settings.rounds, settings.training)
    _check_account(settings, has_secure_sums)


def _check_baseline(settings: Experiment) -> None:
    given = (settings.method["name"], settings.rounds.rounds, settings.data.normalization, settings.device)
    if given[0] not in ("centralized", "local") or given[1:] != (1, "none", "cpu"):
        raise SettingsError(
            f"--baseline {settings.baseline}: expected --method centralized or local, --model har_features, --rounds 1 "
            f"and --device cpu; came --method {given[0]}, --rounds {given[1]}, --normalization {given[2]} and --device "
            f"{given[3]}"
        )


def _check_account(settings: Experiment, has_secure_sums: bool) -> None:
    """Ask for the ε of one round, which needs a library, rather before the first round than after it."""
    rounds, secure = settings.rounds, settings.secure
    if noise := secure.noise_multiplier if has_secure_sums else rounds.noise_multiplier:
        epsilon_of_rounds(noise, 1, rounds.delta, on_sums=has_secure_sums)
    if noise := settings.training.example_noise_multiplier:
        epsilon_of_epochs(noise, 1, rounds.delta)


def check_clients(rounds: RoundSettings, secure: SecureSettings, clients: int) -> None:
    """Refuse rounds of too few clients: for a sum, or where those rest whose update is used (`rounds.noise_bands`)."""
    least, present = secure.min_devices * secure.groups, min(clients, rounds.clients_per_round or clients)
    if secure.is_on and present < least:
        groups = f" in each of {secure.groups} groups (secure.groups), {least} in all" if secure.groups > 1 else ""
        raise SettingsError(
            f"secure.mode={secure.mode}: a round has {present} clients, a sum {secure.min_devices} at least "
            f"(secure.min_devices){groups}"
        )
    cohort = math.ceil((rounds.clients_per_round or clients) * rounds.over_selection)
    if rounds.noise_bands > 1 and rounds.noise_bands * cohort > clients:
        raise SettingsError(
            f"rounds.noise_bands={rounds.noise_bands}: a client takes part in one of so many rounds, each invites "
            f"{cohort}, so {rounds.noise_bands * cohort} clients are needed; there are {clients}"
        )


def check_task(networks: Sequence[Architecture], clients: Iterable[Examples]) -> None:
    """Refuse networks whose output does not fit the targets, by one example: what comes later would be a traceback."""
    part = next((part for part in clients if len(part.y)), None)
    if part is None:
        return
    example = Examples(part.x[:1], part.y[:1])
    for network in networks:
        check_images(network.setup.training.augmentation, example.x)
        if network.setup.training.augmentation.is_of_windows:
            check_windows(example.x)
        if mismatch := task_mismatch(network.setup, network.initial, example):
            raise SettingsError(f"--task with --model {network.model.name}: {mismatch}")
