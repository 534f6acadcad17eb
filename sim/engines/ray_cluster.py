"""Clients on a Ray cluster: more cores, hosts or GPUs than one machine has; the numbers are those of `Serial`.

Examples and networks are put into Ray's object store once, a round's broadcast once a round. A client's state stays
there between its rounds for as long as the simulation holds the very tensors that came back. A worker that dies is
Ray's to start again; its task is repeated.

Every host of the cluster needs Gaitway of the same version. RAY_ADDRESS says where the cluster is; without it one is
started on this machine.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from federation.records import Client
from federation.records.tree import flatten, map_tree
from federation.training.local_round import LocalRound
from gaitway.own_packages import install_command
from sim.engines.processes import longest_first
from sim.engines.serial import ClientJob, trained
from sim.errors import EngineError

TASKS_PER_WORKER = 4
"""Tasks that wait for each worker: enough that none is idle, few enough that the store does not fill."""
RETRIES = 3


CONNECT_S = 5.0


class RayCluster:
    """Trains clients as tasks; connects at the first round."""

    def __init__(self, workers: int | None, device: str) -> None:
        self.workers, self.device = workers, device
        self._ray: Any = None
        self._task: Any = None
        self._kept: dict[int, tuple[Any, Any]] = {}  # id → (the object, so that the id stays its own; its reference)
        self.states: dict[str, _State] = {}

    def run(self, jobs: Sequence[ClientJob], round_number: int) -> Iterator[tuple[str, LocalRound]]:
        """Yield results as they come.

        Raises:
            EngineError: if there is no Ray or no cluster, if the work fails, or if its worker died again and again.
        """
        self._connect()
        broadcasts: dict[int, Any] = {}
        waiting = deque(longest_first(jobs))
        running: dict[Any, tuple[ClientJob, Any]] = {}
        at_most = TASKS_PER_WORKER * max(1, int(self._ray.cluster_resources().get("GPU" if self._on_gpu else "CPU", 1)))
        while waiting or running:
            while waiting and len(running) < at_most:
                job = jobs[waiting.popleft()]
                client, rest = self._begin(job, round_number, broadcasts)
                running[rest] = job, client
            done, _ = self._ray.wait(list(running))
            job, client = running.pop(done[0])
            yield job.client_id, self._result(job, client, done[0])

    @property
    def _on_gpu(self) -> bool:
        return self.device != "cpu"

    def _connect(self) -> None:
        if self._ray is not None:
            return
        ray = joined_cluster(self.workers)
        self._ray = ray
        task = ray.remote(_train)
        gpus = int(self._on_gpu)
        self._task = task.options(num_returns=2, num_cpus=1 - gpus, num_gpus=gpus, max_retries=RETRIES)

    def _begin(self, job: ClientJob, round_number: int, broadcasts: dict[int, Any]) -> list[Any]:
        """Start a client's task, and return the references of its state and of the rest."""
        if id(job.broadcast) not in broadcasts:
            broadcasts[id(job.broadcast)] = self._ray.put(to_arrays(job.broadcast))
        stored = self.states.get(job.client_id)
        same = stored is not None and stored.is_of(job.client)
        started: list[Any] = self._task.remote(
            self._keep(job.setup, job.setup),
            stored.reference if stored and same else self._ray.put(to_arrays(job.client._asdict())),
            broadcasts[id(job.broadcast)],
            self._keep(job.examples, to_arrays(job.examples._asdict())),
            _Turn(job.client_id, job.max_steps, round_number, self.device),
        )
        return started

    def _keep(self, thing: Any, stored: Any) -> Any:
        """Put a thing into the object store the first time."""
        if id(thing) not in self._kept:
            self._kept[id(thing)] = thing, self._ray.put(stored)
        return self._kept[id(thing)][1]

    def _result(self, job: ClientJob, state: Any, rest: Any) -> LocalRound:
        try:
            client, others = self._ray.get([state, rest])
        except self._ray.exceptions.RayTaskError as error:
            raise EngineError(f"client {job.client_id}: {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            raise EngineError(f"client {job.client_id}: its worker died {RETRIES + 1} times: {error}") from error
        kept = Client(**to_tensors(client, self.device))
        self._remember(job.client_id, kept, state)
        rest = to_tensors(others, self.device)
        return LocalRound(kept, rest["upload"], rest["loss"])

    def _remember(self, client_id: str, client: Client, reference: Any) -> None:
        """Keep a client's state in the store until somebody else keeps its tensors no more."""
        tensors = list(flatten(client._asdict()).values())
        state = self.states[client_id] = _State([weakref.ref(tensor) for tensor in tensors], reference)
        if tensors:
            weakref.finalize(tensors[0], self._forget, client_id, state).atexit = False

    def _forget(self, client_id: str, state: _State) -> None:
        if self.states.get(client_id) is state:  # a later round's may have come
            del self.states[client_id]


class _State(NamedTuple):
    """A client's state in the object store, and the tensors here that are its copy."""

    tensors: list[weakref.ref[Tensor]]
    reference: Any

    def is_of(self, client: Client) -> bool:
        """Whether a client has these very tensors."""
        others = list(flatten(client._asdict()).values())
        return len(others) == len(self.tensors) and all(
            known() is other for known, other in zip(self.tensors, others, strict=True)
        )


class _Turn(NamedTuple):
    """Which client trains in which round, for how many steps at most, and on what device."""

    client_id: str
    max_steps: int | None
    round_number: int
    device: str


def _train(setup: Any, client: Any, broadcast: Any, examples: Any, turn: _Turn) -> tuple[Any, Any]:
    """Run one client's round in a worker."""
    from federation.records import Examples

    torch.set_num_threads(1)
    job = ClientJob(
        turn.client_id,
        setup,
        Client(**to_tensors(client, turn.device)),
        to_tensors(broadcast, turn.device),
        Examples(**to_tensors(examples, turn.device)),
        turn.max_steps,
    )
    result = trained(job, turn.round_number)
    return to_arrays(result.client._asdict()), to_arrays({"upload": result.upload, "loss": result.loss})


def to_arrays(tree: Any) -> Any:
    """Turn tensors into arrays, which Ray shares between processes without pickling their numbers."""
    return map_tree(lambda value: value.detach().cpu().numpy(), tree)


def to_tensors(tree: Any, device: str) -> Any:
    """Turn arrays of the object store, which cannot be written to, into tensors that can."""

    def copied(value: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(value)).to(device)

    return map_tree(copied, tree)


def joined_cluster(workers: int | None) -> Any:
    """Return Ray, joined to the cluster at RAY_ADDRESS, or to one of so many workers started on this machine.

    Raises:
        EngineError: if there is no Ray or no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"work on Ray needs it: {install_command('ray')}") from error
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    _require_listener(address or "")
    try:
        # "local", for Ray would else join whatever cluster was last started on this machine
        ray.init(
            address or "local",
            num_cpus=None if address else workers,  # a cluster that is there has its own
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ray.exceptions.RayError, ValueError) as error:
        # Ray asks for a token from 2.59 on, and says of a missing one only that it failed to connect
        raise EngineError(
            f"the Ray cluster at RAY_ADDRESS={address} rejects us: {error}. A cluster with token authentication needs "
            "RAY_AUTH_MODE=token here and the head's token in ~/.ray/auth_token or RAY_AUTH_TOKEN; "
            "docs/compare-runs.md has the steps"
            if address
            else f"Ray does not start on this machine: {error}"
        ) from error
    return ray


def _require_listener(address: str) -> None:
    """Ray itself waits minutes for an address where nobody listens."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise EngineError(
            f"no Ray cluster listens at RAY_ADDRESS={address}: {error}; `ray start --head --port={port}` starts one "
            "there, and without RAY_ADDRESS one starts on this machine"
        ) from error
