"""One run, in order: resolve its settings once, load its data, play its rounds, write its results.

`run` is the whole way. Attacks and analyses go a part of it with `resolve`, `load_data` and `build_simulation`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from federation.methods import method_from_json
from federation.tasks import task_from_json
from federation.training.forward import compute_reproducibly, reserve_workspace
from gaitway.errors import first_problem
from gaitway.interrupts import HeldSignals
from gaitway.tasks import TargetKind
from sim.attacks import check_attack, drawn_attack, sends_sums
from sim.data.federated_data import FederatedData, pooled
from sim.data.selection import keep_known_classes, leave_clients_out, scaled, with_few_labels
from sim.data.sources import Progress, get_source
from sim.engines import choose, client_store
from sim.engines.stacked import CHUNK
from sim.errors import RunDirectoryError, SettingsError
from sim.experiment.checks import check_clients, check_settings, check_task
from sim.experiment.networks import RunPlan, for_data
from sim.experiment.settings import Experiment
from sim.results.artifacts import FILE, images_of, save_models, save_round_model, write_images
from sim.results.description import AFRESH, check_unchanged, origin_of, settings_in, write_description
from sim.results.run_directory import RunFiles
from sim.results.summary import write_results
from sim.results.tracking import Observers, RunCallback
from sim.rounds.analyses import analyse_round
from sim.rounds.baselines import Baseline
from sim.rounds.collection import Uplink
from sim.rounds.new_clients import score_new_clients
from sim.rounds.secure_rounds import SecureRounds
from sim.rounds.simulation import Simulation
from sim.scores.evaluation import Evaluator

SAVING = "Stopping after this round, so that its work is saved; press Ctrl-C again to stop now and lose it."


@dataclass(frozen=True)
class Places:
    """Where a run reads and how often it saves, which its numbers do not depend on.

    `root` is the folder or archive of the data, `cache` that of windows; `client_store` is the folder of the clients'
    models where memory does not hold them (None: the run's directory).
    """

    root: Path | None = None
    cache: Path | None = None
    client_store: Path | None = None
    checkpoint_every_s: float = 60.0


def run(
    settings: Experiment,
    out: Path,
    callbacks: Sequence[RunCallback] = (),
    *,
    data: FederatedData | None = None,
    places: Places = Places(),
) -> dict[str, Any]:
    """Run, or resume, the federation that `settings` describe in the directory `out`, and return its summary.

    `data` are its examples where they have been read before.

    Raises:
        RunDirectoryError: if `out` holds another configuration's run or a damaged checkpoint, or cannot be written to.
        SettingsError: if settings or data do not go together.
        ClientStoreError: if the clients' models are to be kept on the disk, and it is full.
    """
    plan = resolve(settings)
    watched = Observers(callbacks)
    start = time.perf_counter()
    data = load_data(plan, places.root, places.cache, watched.on_reading) if data is None else data
    seconds = time.perf_counter() - start
    watched.on_data(data)
    files = RunFiles.opened(out, places.checkpoint_every_s)
    store = choose_client_store(plan, data, places.client_store or out)
    simulation = build_simulation(plan, data, store=store.store, watched=watched)
    with files.writing("the run's description (config.json, plan.json, clients.json)"):
        write_description(out, plan, data)
    watched.on_choice("client_store", store.name, store.reason)
    if saved := files.checkpoint(settings.device):
        simulation.restore(saved)
    files.keep_rounds(simulation.round_number)
    with watched.watching(out, simulation.round_number):
        play_rounds(simulation, settings, files, watched)
        summary = finish(simulation, settings, files, {"clients": len(data.clients), "seconds": {"data": seconds}})
        watched.at_end(out, summary)
    return summary


def resolve(settings: Experiment) -> RunPlan:
    """Check settings, and find the method and the task that they name; from then on torch computes reproducibly.

    Raises:
        SettingsError: if settings do not go together, whatever the data are, or name a GPU that is not there.
    """
    method, task = method_from_json(settings.method), task_from_json(settings.task)
    check_settings(settings, method)
    if settings.attack != "none":
        check_attack(settings.attack, method)
    begin_computing(settings.device, settings.threads)
    return RunPlan(settings, method, task)


def begin_computing(device: str, threads: int) -> None:
    """Set up torch; raises SettingsError if it finds no GPU where one is asked for."""
    torch.set_num_threads(threads)
    if torch.device(device).type != "cuda":
        return
    reserve_workspace()
    if not torch.cuda.is_available():
        raise SettingsError(
            f"--device {device}: torch {torch.__version__} finds no GPU that it can use; install a build with "
            "CUDA and its driver, or leave --device out"
        )
    compute_reproducibly()


def load_data(
    plan: RunPlan, root: Path | None = None, cache: Path | None = None, progress: Progress | None = None
) -> FederatedData:
    """Read, divide and normalize the examples; hold the new clients out, and leave as much as scale and labels say."""
    settings, task, seed = plan.settings, plan.task, plan.settings.training.seed
    data = get_source(settings.dataset).load(settings, root, cache, progress)
    data = keep_known_classes(leave_clients_out(data, settings.holdout, seed), settings.holdout, task)
    data = scaled(data, settings.scale, seed, task)
    return with_few_labels(data, task, settings.labelled_per_class, settings.labelled_clients, seed)


def check_finished(out: Path, root: Path | None, cache: Path | None) -> None:
    """Refuse the results of a finished run whose data or code have changed since.

    Raises:
        RunDirectoryError: if they have changed, or the run is of another version of Gaitway.
        SettingsError: if the data can't be read.
    """
    old = json.loads((out / "config.json").read_text())
    try:
        settings = settings_in(old).model_copy(update={"device": "cpu"})  # nothing is computed
    except ValidationError as error:
        raise RunDirectoryError(f"{out} holds a run of another version: {first_problem(error)}; {AFRESH}") from error
    plan = resolve(settings)
    check_unchanged(old, origin_of(plan, load_data(plan, root, cache)), out)


def build_simulation(
    plan: RunPlan,
    data: FederatedData,
    *,
    store: client_store.ClientStore | None = None,
    watched: RunCallback = RunCallback(),
) -> Simulation:
    """Join the plan's parts into a simulation at round 0, which keeps clients in `store`, by default in memory.

    Raises:
        SettingsError: if the data are not such as the plan needs.
    """
    settings, method = plan.settings, plan.method
    networks = for_data(plan.networks, data.moments, data.channels)
    check_clients(settings.rounds, settings.secure, len(data.clients))
    check_task(networks, (client.train for client in data.clients.values()))
    data = pooled(data) if method.traits.pools_data else data
    attack = None
    if settings.attack != "none":
        attack = drawn_attack(settings.attack, settings.attackers, data.train_sizes, settings.training.seed)
        watched.on_choice("attack", attack.kind, ", ".join(sorted(attack.attackers)))
        data = data if sends_sums(method) else attack.on_data(data)
    engine = choose(settings, min(len(data.clients), settings.rounds.clients_per_round or len(data.clients)))
    watched.on_choice("engine", engine.name, engine.reason)
    # on CUDA many models at once fill the device; on the CPU one after the other is faster
    together = (settings.chunk or CHUNK) if engine.name == "stacked" and settings.device != "cpu" else 1
    baseline = settings.baseline
    kind: Callable[..., Simulation] = Simulation if baseline == "none" else partial(Baseline, baseline=baseline)
    simulation = kind(
        networks=networks,
        rounds=settings.rounds,
        data=data,
        engine=engine.engine,
        evaluator=Evaluator(settings.eval_batch, together, engine.workers),
        straggling=settings.stragglers,
        eval_every=settings.eval_every,
        eval_last=settings.eval_last,
        generalization_examples=settings.generalization_examples,
        uplink=Uplink(settings.precision),
        secure=SecureRounds.of(*networks[0][1:], settings.secure) if settings.secure.is_on else None,
        attack=attack,
        client_store=client_store.MemoryStore() if store is None else store,
        on_client=watched.on_client,
        analyse=None if settings.analyses == "none" else analyse_round,
    )
    if isinstance(store, client_store.NullStore):
        broadcast = method.broadcast(simulation.state, min(simulation.network_of))
        client_store.check_forgetting(networks, broadcast, settings.precision)
    return simulation


def choose_client_store(plan: RunPlan, data: FederatedData, folder: Path) -> client_store.StoreChoice:
    """Choose where the clients' models are stored between rounds."""
    settings, rounds = plan.settings, plan.settings.rounds
    clients = 1 if plan.method.traits.pools_data else len(data.train_sizes)
    cohort = min(clients, rounds.clients_per_round or clients)
    size = max(client_store.client_bytes(network.initial) for network in plan.networks)
    size *= 2 if settings.precision == "int8" else 1  # a residual is at the most as large as the model
    demand = client_store.StoreDemand(clients, cohort, rounds.rounds, size, chosen=2 if data.validation else 1)
    return client_store.choose(settings.client_store, settings.device, demand, folder)


def play_rounds(simulation: Simulation, settings: Experiment, files: RunFiles, watched: Observers) -> None:
    """Play the rounds that are left, and write each one's line, and now and then a checkpoint.

    Raises:
        KeyboardInterrupt: after the round in which a signal came, which is saved.
    """
    with HeldSignals(SAVING) as signals:
        for record in simulation.run_rounds():
            if "analyses" in record and simulation.task.target is TargetKind.CLASS:  # segmentation's networks are large
                with files.writing("the server's model of a round (models/rounds)"):
                    save_round_model(simulation, settings, files.out)
            files.append(record)
            is_last, is_due = False, True  # due, too, when a callback fails or is interrupted
            try:
                watched.after_round(record)
                is_last = simulation.is_over or signals.held is not None
                is_due = is_last or files.is_checkpoint_due
            finally:
                if is_due:
                    files.save(simulation.checkpoint())
            if is_last:
                break
    if not simulation.is_over:
        raise KeyboardInterrupt  # whoever handles the signal goes on, but there is nothing to summarize yet


def finish(simulation: Simulation, settings: Experiment, files: RunFiles, extra: dict[str, Any]) -> dict[str, Any]:
    """Score what is scored at the end, and write the summary, its neighbours and the models."""
    if settings.holdout is not None and settings.new_users:
        extra["new_clients"] = score_new_clients(
            simulation, settings.holdout, by_own_statistics=settings.data.normalization == "client"
        )
    with files.writing("the final scores (summary.json and its neighbours)"):
        summary = write_results(simulation, settings, files.out, extra)
    if settings.baseline == "none":  # whose models are no networks
        with files.writing("the models (models/*.safetensors)"):
            save_models(simulation, settings, files.out)
    if images := images_of(simulation):
        with files.writing(f"a few segmented test images ({FILE})"):
            write_images(files.out / FILE, images)
    return summary
