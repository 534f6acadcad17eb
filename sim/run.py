"""One run from its settings to its directory: data, rounds, checkpoints, scores, models."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from federation.methods import METHODS, method_from_json, method_to_json
from federation.methods.fedali import GLOBAL, LOCAL
from federation.plan import window_change_incompatibility
from federation.privacy.accounting import epsilon_of_epochs, epsilon_of_rounds
from federation.privacy.differential_privacy import check_private
from federation.privacy.example_level import check_example_noise
from federation.records import Examples
from federation.secure_sums.summation import check_secure
from federation.tasks import task_from_json
from federation.training.augmentation import check_images
from federation.training.cuda import compute_reproducibly, reserve_workspace
from federation.training.prediction import task_mismatch
from federation.training.window_changes import check_windows
from gaitway.files import write_file
from sim import checkpoint, client_store
from sim.attacks import Attack, check_attack, sends_sums
from sim.baselines import Baseline
from sim.data.federated_data import FederatedData
from sim.data.few_labels import with_few_labels
from sim.data.holdout import keep_known_classes, leave_clients_out
from sim.data.pooling import pooled
from sim.data.scaling import scaled
from sim.data.sources import Progress, get_source
from sim.engines import EngineChoice, choose
from sim.engines.stacked import CHUNK
from sim.errors import RunDirectoryError, SettingsError
from sim.evaluation import Evaluator
from sim.experiment import DEFAULTS, Experiment
from sim.networks.architectures import Architecture, architectures, for_data
from sim.new_clients import score_new_clients
from sim.results.records import RoundRecord, Summary
from sim.results.run_directory import RunDirectory
from sim.results.saved_models import save_models
from sim.results.segmented_images import FILE, images_of, write_images
from sim.results.summary import write_json, write_results
from sim.results.writing import CHECKPOINT, writing
from sim.run_options import ENVIRONMENT
from sim.secure_rounds import SecureRounds
from sim.simulation import Simulation
from sim.tracking.callback import RunCallback
from sim.uplink import Uplink

Report = Callable[[str, dict[str, Any]], None]
"""Called with ("engine", {...}) and ("client_store", {...}) at first, then ("client", {...}) and ("round", {...})."""

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
        _can_forget(settings, simulation)
    engine = _engine(settings, simulation.data)
    report("engine", {"name": engine.name, "reason": engine.reason})
    with writing("the run's description (config.json, plan.json, clients.json)", out):
        check_resumable(out, settings, data, simulation)
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
        _play(simulation, out, checkpoint_every_s, report, callbacks)
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


def _hardware(device: str) -> str:
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"  # other kernels round otherwise
    where = f"{processor}, {torch.get_num_threads()} torch threads, {platform.system()}"
    return f"{where}, {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else where


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
    _check_rest(settings, len(data.clients))
    networks = for_data(architectures(settings) if networks is None else networks, data.moments, data.channels)
    _check_task(networks, data)
    data = pooled(data) if method.pools_data else data
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
        generalization_examples=settings.generalization_examples,
        compares_gradients=settings.gradient_dissimilarity,
        uplink=Uplink(settings.precision),
        secure=_secure_rounds(settings, networks, len(data.clients)),
        attack=attack,
        client_store=client_store.MemoryStore() if store is None else store,
        on_client=on_client,
    )


def check_settings(settings: Experiment) -> None:
    """Refuse settings that do not go together, whatever the data are.

    Raises:
        SettingsError: naming the option.
    """
    method = method_from_json(settings.method)
    if settings.gradient_dissimilarity and (method.pools_data or not method.has_global_model):
        why = "has one client" if method.pools_data else "sends no model that all clients start a round from"
        raise SettingsError(f"--gradient-dissimilarity: {method.name} {why}, so there is nothing to compare")
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


def _check_account(settings: Experiment) -> None:
    """Ask for the ε of one round, which needs a library, rather before the first round than after it."""
    rounds, secure = settings.rounds, settings.secure
    if noise := secure.noise_multiplier if secure.is_on else rounds.noise_multiplier:
        epsilon_of_rounds(noise, 1, rounds.delta, on_sums=secure.is_on)
    if noise := settings.training.example_noise_multiplier:
        epsilon_of_epochs(noise, 1, rounds.delta)


def _check_rest(settings: Experiment, clients: int) -> None:
    """Refuse rounds that would wait for clients for ever: whose update is used rests (`rounds.noise_bands`)."""
    rounds = settings.rounds
    cohort = math.ceil((rounds.clients_per_round or clients) * rounds.over_selection)
    if rounds.noise_bands > 1 and rounds.noise_bands * cohort > clients:
        raise SettingsError(
            f"rounds.noise_bands={rounds.noise_bands}: a client takes part in one of so many rounds, each invites "
            f"{cohort}, so {rounds.noise_bands * cohort} clients are needed; there are {clients}"
        )


def _check_baseline(settings: Experiment) -> None:
    given = (settings.method["name"], settings.rounds.rounds, settings.data.normalization, settings.device)
    if given[0] not in ("centralized", "local") or given[1:] != (1, "none", "cpu"):
        raise SettingsError(
            f"--baseline {settings.baseline}: expected --method centralized or local, --model har_features, --rounds 1 "
            f"and --device cpu; came --method {given[0]}, --rounds {given[1]}, --normalization {given[2]} and --device "
            f"{given[3]}"
        )


def _check_task(networks: Sequence[Architecture], data: FederatedData) -> None:
    """Refuse networks whose output does not fit the targets, by one example: what comes later would be a traceback."""
    found = (own.train for own in data.clients.values() if len(own.train.y))
    for one in (Examples(part.x[:1], part.y[:1]) for part in islice(found, 1)):
        for network in networks:
            check_images(network.setup.training.augmentation, one.x)
            if network.setup.training.augmentation.is_of_windows:
                check_windows(one.x)
            if mismatch := task_mismatch(network.setup, network.initial, one):
                raise SettingsError(f"--task with --model {network.model.name}: {mismatch}")


def _engine(settings: Experiment, data: FederatedData) -> EngineChoice:
    return choose(settings, min(len(data.clients), settings.rounds.clients_per_round or len(data.clients)))


def _choose_client_store(
    settings: Experiment, networks: Sequence[Architecture], data: FederatedData, folder: Path
) -> client_store.StoreChoice:
    rounds = settings.rounds
    clients = 1 if METHODS[settings.method["name"]].pools_data else len(data.train_sizes)
    cohort = min(clients, rounds.clients_per_round or clients)
    each = max(client_store.client_bytes(network.initial) for network in networks)
    each *= 2 if settings.precision == "int8" else 1  # a residual is at the most as large as the model
    chosen = 2 if data.validation else 1
    federation = client_store.StoreDemand(clients, cohort, rounds.rounds, each, chosen)
    return client_store.choose(settings.client_store, settings.device, federation, folder)


def _can_forget(settings: Experiment, simulation: Simulation) -> None:
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


def _play(
    simulation: Simulation, out: Path, checkpoint_every_s: float, report: Report, callbacks: Sequence[RunCallback]
) -> None:
    written, pause = time.monotonic(), checkpoint_every_s
    lines = out / "rounds.jsonl"
    for record in simulation.run_rounds():
        with writing(f"the scores of round {record['round']} (rounds.jsonl)", out), lines.open("a") as file:
            file.write(json.dumps(record) + "\n")
        report("round", record)
        for callback in callbacks:
            callback.on_round(RoundRecord.model_validate(record))
        begun = time.monotonic()
        if simulation.is_over or begun - written >= pause:
            with writing(f"the checkpoint of round {record['round']} ({CHECKPOINT})", out):
                checkpoint.save(out / CHECKPOINT, simulation.checkpoint())
            written = time.monotonic()
            pause = checkpoint_every_s and max(checkpoint_every_s, (written - begun) / WRITING_SHARE)


def _truncate_lines(path: Path, rounds: int) -> None:
    """Drop the lines that a kill left after the checkpoint; those rounds are played again."""
    lines = path.read_text().splitlines()[:rounds] if path.exists() else []
    write_file(path, "".join(line + "\n" for line in lines).encode())


VOLATILE = ENVIRONMENT | {
    *("versions", "hardware", "parameters", "split_leaks", "findings", "partition_class_names", "data_sha256"),
}
"""Keys of config.json that may differ when a run is resumed."""


def check_resumable(out: Path, settings: Experiment, data: FederatedData, simulation: Simulation) -> None:
    """Write config.json, plan.json and clients.json.

    Raises:
        RunDirectoryError: if the directory belongs to another configuration.
    """
    config = {**settings.model_dump(mode="json", by_alias=True), **_facts(data, simulation, settings.device)}
    path = out / "config.json"
    if path.exists():
        _compare(_with_new_defaults(json.loads(path.read_text())), config, out)
    write_json(path, config)
    write_json(out / "plan.json", settings.plan_for(data).model_dump(mode="json"))
    write_json(out / "clients.json", data.per_class(simulation.task))


def _with_new_defaults(old: dict[str, Any]) -> dict[str, Any]:
    """Give a run of an earlier version the keys that settings have had since, whose defaults keep its meaning."""
    names = {field.alias or name for name, field in Experiment.model_fields.items()}
    try:
        settings = Experiment.model_validate({name: value for name, value in old.items() if name in names})
    except (ValidationError, SettingsError):
        return old  # of settings that this version does not have: the comparison says which
    method = method_to_json(method_from_json(settings.method))
    return {**old, **settings.model_dump(mode="json", by_alias=True), "method": method}


def _compare(old: dict[str, Any], config: dict[str, Any], out: Path) -> None:
    for key in sorted((old.keys() | config.keys()) - VOLATILE):
        before, now = old.get(key), config.get(key)
        if json.dumps(before) != json.dumps(now):
            raise RunDirectoryError(
                f"{out} holds a run with {key} = {before!r}, this one has {now!r}; "
                "choose another --out, or delete that directory to begin again"
            )


def _facts(data: FederatedData, simulation: Simulation, device: str) -> dict[str, Any]:
    initial = simulation.initial
    prototypes = sum(v.numel() for n, v in initial.buffers.items() if n.endswith((LOCAL, GLOBAL)))
    return {
        "split_leaks": data.split_leaks,
        "findings": data.findings,
        "partition_class_names": data.partition_class_names,
        "data_sha256": data.sha256(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "gaitway": _own_version(),
        },
        "hardware": _hardware(device),
        "parameters": {"trained": sum(v.numel() for v in initial.params.values()), "prototypes": prototypes},
    }


def _own_version() -> str:
    try:
        return version("gaitway")
    except PackageNotFoundError:
        return "not installed"
