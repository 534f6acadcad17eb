"""Should a device choose its model by held-out windows of its training sessions, or by left-out sessions?

    python experiments/session_choice.py --data-root ../shared/data

Each person's last sessions are set aside. FedAvg trains on the others, in one federation and in federations of four.
Every device then chooses twice, by the last fifth of its training sessions and by leave-session-out cross-validation,
and each choice is scored on the sessions set aside. `flattery` is how many points the evidence overstates the own
model's gain over the shared one. Finished federations are skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from serving_choice import CANDIDATES, METHODS, ORDER, _examples, _normalized, answers, candidates, validated

from federation.rounds.serving import Evidence, Rival, expected_gains, likeliest
from gaitway.tasks.classification import confusion, scores_of
from har_pipeline import ClientWindows, PipelineSettings, dataset_settings, default_cache_dir, prepare
from har_pipeline.splits import Split, overlaps, split_client
from sim.cli.options import describe
from sim.data.federated_data import ClientData, FederatedData
from sim.presets import with_defaults
from sim.run import build_simulation, resolve

SETS = ("motionsense", "spsw")
DEVICES = 4
HOLDOUT_SHARE = 0.2


def later_sessions(windows: ClientWindows) -> np.ndarray:
    """Mark the windows (n,) of each class's last third of sessions; of a class with two sessions, the last one."""
    later = np.zeros(len(windows), bool)
    for label in np.unique(windows.y):
        sessions = np.unique(windows.session[windows.y == label])
        count = max(1, len(sessions) // 3) if len(sessions) > 1 else 0
        later |= (windows.y == label) & np.isin(windows.session, sessions[len(sessions) - count :])
    return later


def device_split(windows: ClientWindows, settings: PipelineSettings) -> tuple[Split, np.ndarray]:
    """Return a device's training and held-out rows, and the rows (m,) of the sessions that are set aside."""
    later = later_sessions(windows)
    is_near = np.zeros(len(windows), bool)
    for session in np.unique(windows.session):  # each session's clock starts at 0
        rows = windows.session == session
        is_near[rows] = overlaps(windows.start_s[rows], windows.start_s[rows & later], settings.window_s)
    early = np.flatnonzero(~later & ~is_near)
    split = split_client(windows.select(early), "temporal", test_share=HOLDOUT_SHARE, settings=settings)
    return Split(early[split.train], early[split.test], leaks=False), np.flatnonzero(later)


def collect(data: str, group: int | None, root: Path) -> dict[str, np.ndarray]:
    """Train a federation of everybody, or of one group of four; return each client's answers by `client/name`."""
    options = {**METHODS["fedavg"], "data": data, "seed": 0, "threads": 1, "validation_share": 0.0}
    experiment = describe(with_defaults(None, options), None, None)
    pipeline = PipelineSettings.from_json({**dataset_settings(data).to_json(), **experiment.data.pipeline})
    dataset = prepare(data, root, pipeline, cache_dir=default_cache_dir())
    names = sorted(dataset.clients)[slice(None) if group is None else slice(DEVICES * group, DEVICES * (group + 1))]
    splits, later = {}, {}
    for name in names:
        split, rows = device_split(dataset.clients[name], pipeline)
        if len(split.train) and len(rows):
            splits[name], later[name] = split, rows
    windows, statistics = _normalized(
        {name: dataset.clients[name] for name in splits}, splits, experiment.data.normalization
    )
    clients = {
        name: ClientData(_examples(windows[name], split.train), _examples(windows[name], split.test))
        for name, split in splits.items()
    }
    federated = FederatedData(dataset.labels, clients, {name: statistics[name] for name in clients}, split_leaks=False)
    plan = resolve(experiment.model_copy(update={"eval_every": 10**6}))
    simulation = build_simulation(plan, federated)
    for _ in simulation.run_rounds():
        pass
    found: dict[str, np.ndarray] = {"labels": np.array(dataset.labels)}
    shared, trained = simulation.server_model(), simulation.scored_clients()
    for name, split in splits.items():
        for candidate, model in candidates(simulation, shared, trained[name]).items():
            found[f"{name}/{candidate}"] = answers(simulation, model, clients[name].test.x)
            found[f"{name}/later_{candidate}"] = answers(
                simulation, model, torch.from_numpy(windows[name].x[later[name]])
            )
        found[f"{name}/y"], found[f"{name}/session"] = windows[name].y[split.test], windows[name].session[split.test]
        found[f"{name}/later_y"] = windows[name].y[later[name]]
        found[f"{name}/trained"] = np.bincount(windows[name].y[split.train], minlength=len(dataset.labels))
    # a device cross-validates over all of its labelled windows, held-out ones included
    labelled = {
        name: Split(np.sort(np.r_[split.train, split.test]), split.test, False) for name, split in splits.items()
    }
    return found | validated(simulation, shared, windows, labelled, pipeline.window_s)


def scores(client: Mapping[str, np.ndarray], classes: int) -> dict[str, float] | None:
    """Return the later macro-F1 of every model and of both choices, and both flatteries; None for one later class."""
    if len(np.unique(client["later_y"])) < 2:
        return None
    later = {
        name: 100 * scores_of(confusion(client["later_y"], client[f"later_{name}"], classes)).macro_f1
        for name in CANDIDATES
    }
    row = {**later, "oracle": max(later.values())}
    known = client["validated_personal"] >= 0
    kinds = {
        "held-out": (client["y"], client["session"], {name: client[name] for name in CANDIDATES}),
        "left-out": (
            client["train_y"][known],
            client["train_session"][known],
            {name: client[f"validated_{name}"][known] for name in CANDIDATES},
        ),
    }
    for kind, (y, session, found) in kinds.items():
        right = {name: (answer == y).astype(float) for name, answer in found.items()}
        evidence = {name: Evidence.of(y, right[name], right["shared"], session, classes) for name in CANDIDATES[1:]}
        recall = min(float(right["shared"][y == label].mean()) for label in np.unique(y))
        gains = expected_gains({name: Rival(known) for name, known in evidence.items()}, client["trained"] > 0, recall)
        row[kind] = later[likeliest(gains, ORDER, reference="shared")]
        row[f"flattery {kind}"] = 100 * evidence["personal"].mean - (later["personal"] - later["shared"])
    return row


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/session-choice"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for data in SETS:
        for title, groups in (("federations of four", range(6)), ("everybody", (None,))):
            rows = []
            for group in groups:
                path = given.out / f"{data}-{'all' if group is None else group}.npz"
                if not path.exists():
                    np.savez_compressed(given.out / "part.npz", **collect(data, group, given.data_root))
                    (given.out / "part.npz").rename(path)
                with np.load(path) as file:
                    arrays = {name: file[name] for name in file.files}
                classes = len(arrays.pop("labels"))
                for name in sorted({key.split("/")[0] for key in arrays}):
                    client = {
                        key.split("/", 1)[1]: array for key, array in arrays.items() if key.startswith(f"{name}/")
                    }
                    rows += [row for row in [scores(client, classes)] if row]
            means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            print(data, title, f"{len(rows)} devices", {key: round(mean, 1) for key, mean in means.items()}, flush=True)


if __name__ == "__main__":
    main()
