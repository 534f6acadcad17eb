"""What a run refuses before it begins: settings that do not go together, or that the data do not meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from federation.methods import method_from_json
from federation.plan import window_change_incompatibility
from federation.privacy.accounting import epsilon_of_epochs, epsilon_of_rounds
from federation.privacy.differential_privacy import check_private
from federation.privacy.example_level import check_example_noise
from federation.records import Examples
from federation.training.augmentation import check_images
from federation.training.prediction import task_mismatch
from federation.training.window_changes import check_windows
from sim.attacks.clients import check_attack
from sim.data.federated_data import FederatedData
from sim.engines import client_store
from sim.errors import SettingsError
from sim.experiment import DEFAULTS, Experiment
from sim.networks.architectures import Architecture
from sim.rounds.simulation import Simulation


def check_settings(settings: Experiment) -> None:
    """Refuse settings that do not go together, whatever the data are.

    Raises:
        SettingsError: naming the option.
    """
    method = method_from_json(settings.method)
    if settings.analyses != "none" and settings.baseline != "none":
        raise SettingsError(f"--analyses {settings.analyses}: --baseline {settings.baseline} has no network to analyse")
    if reason := window_change_incompatibility(settings):
        raise SettingsError(reason)
    if settings.attack != "none":
        check_attack(settings.attack, method)
    elif settings.attackers not in (0.0, DEFAULTS["attackers"]):
        raise SettingsError(f"--attackers {settings.attackers:g}: say with --attack what they do, or leave it out")
    if settings.baseline != "none":
        _check_baseline(settings)
    check_private(method, settings.rounds)
    check_example_noise(method, settings.training)
    _check_account(settings)


def _check_baseline(settings: Experiment) -> None:
    given = (settings.method["name"], settings.rounds.rounds, settings.data.normalization, settings.device)
    if given[0] not in ("centralized", "local") or given[1:] != (1, "none", "cpu"):
        raise SettingsError(
            f"--baseline {settings.baseline}: expected --method centralized or local, --model har_features, --rounds 1 "
            f"and --device cpu; came --method {given[0]}, --rounds {given[1]}, --normalization {given[2]} and --device "
            f"{given[3]}"
        )


def _check_account(settings: Experiment) -> None:
    """Ask for the ε of one round, which needs a library, rather before the first round than after it."""
    rounds, secure = settings.rounds, settings.secure
    if noise := secure.noise_multiplier if secure.is_on else rounds.noise_multiplier:
        epsilon_of_rounds(noise, 1, rounds.delta, on_sums=secure.is_on)
    if noise := settings.training.example_noise_multiplier:
        epsilon_of_epochs(noise, 1, rounds.delta)


def check_rest(settings: Experiment, clients: int) -> None:
    """Refuse rounds that would wait for clients for ever: whose update is used rests (`rounds.noise_bands`)."""
    rounds = settings.rounds
    cohort = math.ceil((rounds.clients_per_round or clients) * rounds.over_selection)
    if rounds.noise_bands > 1 and rounds.noise_bands * cohort > clients:
        raise SettingsError(
            f"rounds.noise_bands={rounds.noise_bands}: a client takes part in one of so many rounds, each invites "
            f"{cohort}, so {rounds.noise_bands * cohort} clients are needed; there are {clients}"
        )


def check_task(networks: Sequence[Architecture], data: FederatedData) -> None:
    """Refuse networks whose output does not fit the targets, by one example: what comes later would be a traceback."""
    found = (own.train for own in data.clients.values() if len(own.train.y))
    for one in (Examples(part.x[:1], part.y[:1]) for part in islice(found, 1)):
        for network in networks:
            check_images(network.setup.training.augmentation, one.x)
            if network.setup.training.augmentation.is_of_windows:
                check_windows(one.x)
            if mismatch := task_mismatch(network.setup, network.initial, one):
                raise SettingsError(f"--task with --model {network.model.name}: {mismatch}")


def check_forgetting(settings: Experiment, simulation: Simulation) -> None:
    """Refuse to forget clients that the next round would miss."""
    if not simulation.setup.method.has_global_model:
        raise SettingsError(
            f"--client-store none: {settings.method['name']} has no server model, so nothing would be left to score; "
            "use --client-store auto, memory or disk"
        )
    needed = "its residual" if settings.precision == "int8" else None
    broadcast = simulation.setup.method.broadcast(simulation.state, min(simulation.network_of))
    for network in simulation.networks:
        needed = needed or client_store.remembered(network.setup, network.initial, broadcast)
        if needed:
            raise SettingsError(
                f"--client-store none: with {settings.method['name']} and {settings.precision} uploads a client begins "
                f"a round with what it had before ({needed}); use --client-store auto, memory or disk"
            )
