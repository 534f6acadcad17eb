"""One run from its settings to its directory: data, rounds, checkpoints, scores, models."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from federation.methods import METHODS, method_from_json
from federation.secure_sums.summation import check_secure
from federation.tasks import task_from_json
from federation.training.cuda import compute_reproducibly, reserve_workspace
from gaitway.files import write_file
from gaitway.interrupts import HeldSignals
from gaitway.tasks import TargetKind
from sim.analysis.analyses import analyse_round
from sim.analysis.baselines import Baseline
from sim.analysis.new_clients import score_new_clients
from sim.attacks.clients import Attack, sends_sums
from sim.checks import check_forgetting, check_rest, check_settings, check_task
from sim.data.federated_data import FederatedData
from sim.data.few_labels import with_few_labels
from sim.data.holdout import keep_known_classes, leave_clients_out
from sim.data.pooling import pooled
from sim.data.scaling import scaled
from sim.data.sources import Progress, get_source
from sim.description import write_description
from sim.engines import EngineChoice, choose, client_store
from sim.engines.stacked import CHUNK
from sim.errors import SettingsError
from sim.experiment import Experiment
from sim.networks.architectures import Architecture, architectures, for_data
from sim.results.run_directory import RunDirectory
from sim.results.saved_models import save_models, save_round_model
from sim.results.segmented_images import FILE, images_of, write_images
from sim.results.summary import write_results
from sim.results.tracking.callback import RunCallback
from sim.results.writing import CHECKPOINT, writing
from sim.rounds import checkpoint
from sim.rounds.secure_rounds import SecureRounds
from sim.rounds.simulation import Simulation
from sim.rounds.uplink import Uplink
from sim.scores.evaluation import Evaluator
from sim.scores.records import RoundRecord, Summary

Report = Callable[[str, dict[str, Any]], None]
"""Called with ("engine", {...}) and ("client_store", {...}) at first, then ("client", {...}) and ("round", {...})."""

SAVING = "Stopping after this round, so that its work is saved; press Ctrl-C again to stop now and lose it."
WRITING_SHARE = 0.05
"""Large federations have checkpoints of gigabytes: no more than this share of the time goes into writing them."""


def run(
    settings: Experiment,
    data: FederatedData,
    out: Path,
    *,
    data_seconds: float = 0.0,
    checkpoint_every_s: float = 60.0,
    client_store_dir: Path | None = None,
    report: Report = lambda _kind, _what: None,
    callbacks: Sequence[RunCallback] = (),
) -> dict[str, Any]:
    """Run, or resume, the federation of `settings` in the directory `out`, and return the summary.

    `client_store_dir` is the folder of the clients' models where memory does not hold them; none: `out`.
    `report` hears what is going on at once, `callbacks` what stands in the run's files.

    Raises:
        RunDirectoryError: if `out` holds another configuration's run or a damaged checkpoint, or cannot be written to.
        SettingsError: if no client is to be kept, and the method or the wire needs them.
        ClientStoreError: if the clients' models are to be kept on the disk, and it is full.
    """
    with writing("the run's directory", out):
        out.mkdir(parents=True, exist_ok=True)
    _begin_computing(settings)
    networks = architectures(settings)
    chosen_store = _choose_client_store(settings, networks, data, client_store_dir or out)
    simulation = build_simulation(
        settings,
        data,
        networks=networks,
        store=chosen_store.store,
        on_client=lambda client_id: report("client", {"client": client_id}),
    )
    if settings.client_store == "none":
        check_forgetting(settings, simulation)
    engine = _engine(settings, simulation.data)
    report("engine", {"name": engine.name, "reason": engine.reason})
    with writing("the run's description (config.json, plan.json, clients.json)", out):
        write_description(out, settings, data, simulation)
    report("client_store", {"name": chosen_store.name, "reason": chosen_store.reason})
    if (attack := simulation.attack) is not None:
        report("attack", {"name": attack.kind, "reason": ", ".join(sorted(attack.attackers))})
    if saved := checkpoint.load(out / CHECKPOINT, settings.device):
        simulation.restore(saved)
    with writing("the rounds' scores (rounds.jsonl)", out):
        _truncate_lines(out / "rounds.jsonl", simulation.round_number)
    try:
        directory = RunDirectory(out)
        for callback in callbacks:
            callback.on_start(directory, simulation.round_number)
        _play(simulation, settings, out, checkpoint_every_s, report, callbacks)
        extra = {"clients": len(data.clients), "seconds": {"data": data_seconds}}
        summary = _write_results(simulation, settings, out, extra)
        for callback in callbacks:
            callback.on_end(directory, Summary.model_validate(summary))
    except BaseException as error:
        for callback in callbacks:
            callback.on_error(error)
        raise
    return summary


def _begin_computing(settings: Experiment) -> None:
    torch.set_num_threads(settings.threads)
    if torch.device(settings.device).type != "cuda":
        return
    reserve_workspace()
    if not torch.cuda.is_available():
        raise SettingsError(
            f"--device {settings.device}: torch {torch.__version__} finds no GPU that it can use; install a build with "
            "CUDA and its driver, or leave --device out"
        )
    compute_reproducibly()


def _write_results(simulation: Simulation, settings: Experiment, out: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Score what is scored at the end, and write the summary, its neighbours and the models."""
    if settings.holdout is not None and settings.new_users:
        extra["new_clients"] = score_new_clients(
            simulation, settings.holdout, by_own_statistics=settings.data.normalization == "client"
        )
    with writing("the final scores (summary.json and its neighbours)", out):
        summary = write_results(simulation, settings, out, extra)
    if settings.baseline == "none":  # whose models are no networks
        with writing("the models (models/*.safetensors)", out):
            save_models(simulation, settings, out)
    if images := images_of(simulation):
        with writing(f"a few segmented test images ({FILE})", out):
            write_images(out / FILE, images)
    return summary


def load_data(settings: Experiment, root: Path | None, cache: Path | None, progress: Progress | None) -> FederatedData:
    """Read, divide and normalize the examples; hold the new clients out, and leave as much as scale and labels say.

    Raises:
        SettingsError: before anything is read, if they are to lie on a GPU that is not there, or as `check_settings`.
    """
    check_settings(settings)
    _begin_computing(settings)
    data, seed = get_source(settings.dataset).load(settings, root, cache, progress), settings.training.seed
    task = task_from_json(settings.task)
    data = keep_known_classes(leave_clients_out(data, settings.holdout, seed), settings.holdout, task)
    data = scaled(data, settings.scale, seed, task)
    return with_few_labels(data, task, settings.labelled_per_class, settings.labelled_clients, seed)


def build_simulation(
    settings: Experiment,
    data: FederatedData,
    *,
    networks: Sequence[Architecture] | None = None,
    store: client_store.ClientStore | None = None,
    on_client: Callable[[str], None] = lambda _client_id: None,
) -> Simulation:
    """Join the settings' parts into a simulation at round 0.

    `networks` are those of the settings, if they are built already; clients are kept in `store`, by default in memory;
    `on_client` hears of each client that has trained.

    Raises:
        SettingsError: as `check_settings`, or if the data are not such as the settings need.
    """
    check_settings(settings)
    method = method_from_json(settings.method)
    check_rest(settings, len(data.clients))
    networks = for_data(architectures(settings) if networks is None else networks, data.moments, data.channels)
    check_task(networks, data)
    data = pooled(data) if method.traits.pools_data else data
    attack = _attack(settings, data)
    data = data if attack is None or sends_sums(method) else attack.on_data(data)
    choice = _engine(settings, data)
    # on CUDA many models at once fill the device; on the CPU one after the other is faster
    together = (settings.chunk or CHUNK) if choice.name == "stacked" and settings.device != "cpu" else 1
    baseline = settings.baseline
    kind: Callable[..., Simulation] = Simulation if baseline == "none" else partial(Baseline, baseline=baseline)
    return kind(
        networks=networks,
        rounds=settings.rounds,
        data=data,
        engine=choice.engine,
        evaluator=Evaluator(settings.eval_batch, together, choice.workers),
        straggling=settings.stragglers,
        eval_every=settings.eval_every,
        eval_last=settings.eval_last,
        generalization_examples=settings.generalization_examples,
        uplink=Uplink(settings.precision),
        secure=_secure_rounds(settings, networks, len(data.clients)),
        attack=attack,
        client_store=client_store.MemoryStore() if store is None else store,
        on_client=on_client,
    )


def _attack(settings: Experiment, data: FederatedData) -> Attack | None:
    """Return what hostile clients do, who are drawn from all that train."""
    if settings.attack == "none":
        return None
    clients, share = data.train_sizes, settings.attackers
    found = Attack.drawn(settings.attack, share, clients, settings.training.seed)
    if not found.attackers:
        least = math.ceil(100 * 0.5 / len(clients)) / 100
        raise SettingsError(f"--attackers {share:g} of {len(clients)} clients is nobody; take {least:g} or more")
    return found


def _secure_rounds(settings: Experiment, networks: Sequence[Architecture], clients: int) -> SecureRounds | None:
    """Return what adds the updates up, where the server is to see sums alone.

    Raises:
        SettingsError: if anything else would have to see single updates, or there are too few clients.
    """
    secure, setup = settings.secure, networks[0].setup
    if not secure.is_on:
        return None
    check_secure(setup.method, settings.rounds, secure)
    if settings.precision != "lossless":
        raise SettingsError(
            f"secure.mode={secure.mode}: whole numbers with masks travel as they are; set --precision lossless"
        )
    if (cohort := min(clients, settings.rounds.clients_per_round or clients)) < secure.min_devices * secure.groups:
        groups = (
            f" in each of {secure.groups} groups (secure.groups), {secure.min_devices * secure.groups} in all"
            if secure.groups > 1
            else ""
        )
        raise SettingsError(
            f"secure.mode={secure.mode}: a round has {cohort} clients, a sum {secure.min_devices} at least "
            f"(secure.min_devices){groups}"
        )
    return SecureRounds.of(setup, networks[0].initial, secure)


def _engine(settings: Experiment, data: FederatedData) -> EngineChoice:
    return choose(settings, min(len(data.clients), settings.rounds.clients_per_round or len(data.clients)))


def _choose_client_store(
    settings: Experiment, networks: Sequence[Architecture], data: FederatedData, folder: Path
) -> client_store.StoreChoice:
    rounds = settings.rounds
    clients = 1 if METHODS[settings.method["name"]].traits.pools_data else len(data.train_sizes)
    cohort = min(clients, rounds.clients_per_round or clients)
    each = max(client_store.client_bytes(network.initial) for network in networks)
    each *= 2 if settings.precision == "int8" else 1  # a residual is at the most as large as the model
    chosen = 2 if data.validation else 1
    federation = client_store.StoreDemand(clients, cohort, rounds.rounds, each, chosen)
    return client_store.choose(settings.client_store, settings.device, federation, folder)


def _play(
    simulation: Simulation,
    settings: Experiment,
    out: Path,
    checkpoint_every_s: float,
    report: Report,
    callbacks: Sequence[RunCallback],
) -> None:
    written, pause = time.monotonic(), checkpoint_every_s
    with HeldSignals(SAVING) as signals:
        for record in simulation.run_rounds():
            _record_round(simulation, settings, out, record)
            is_last, is_due = False, True  # due, too, when a callback fails or is interrupted
            try:
                report("round", record)
                for callback in callbacks:
                    callback.on_round(RoundRecord.model_validate(record))
                is_last = simulation.is_over or signals.held is not None
                is_due = is_last or time.monotonic() - written >= pause
            finally:
                if is_due:
                    begun, written = time.monotonic(), _save(simulation, out)
                    pause = checkpoint_every_s and max(checkpoint_every_s, (written - begun) / WRITING_SHARE)
            if is_last:
                break
    if not simulation.is_over:
        raise KeyboardInterrupt  # whoever handles the signal goes on, but there is nothing to summarize yet


def _record_round(simulation: Simulation, settings: Experiment, out: Path, record: dict[str, Any]) -> None:
    """Write the line of a round, and what else it measures."""
    lines = out / "rounds.jsonl"
    if settings.analyses != "none" and record["evaluated"]:
        record["analyses"] = analyse_round(simulation, record)
        if simulation.task.target is TargetKind.CLASS:  # segmentation's networks are large, and take many rounds
            with writing("the server's model of a round (models/rounds)", out):
                save_round_model(simulation, settings, out)
    with writing(f"the scores of round {record['round']} (rounds.jsonl)", out), lines.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _save(simulation: Simulation, out: Path) -> float:
    """Write the checkpoint, and return when it was written."""
    with writing(f"the checkpoint of round {simulation.round_number} ({CHECKPOINT})", out):
        checkpoint.save(out / CHECKPOINT, simulation.checkpoint())
    return time.monotonic()


def _truncate_lines(path: Path, rounds: int) -> None:
    """Drop the lines that a kill left after the checkpoint; those rounds are played again."""
    lines = path.read_text().splitlines()[:rounds] if path.exists() else []
    write_file(path, "".join(line + "\n" for line in lines).encode())
