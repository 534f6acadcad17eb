"""The worker process of aggregations: reads jobs as JSON lines from its input, and answers each with a line.

`python -m aggregator_api.rounds.aggregation_worker` starts it.
It ends with its input. It holds no state between jobs, writes nothing but blobs, and may be killed at any time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import IO, Any

import torch

from aggregator_api.devices.contributions import Contributed, SumChange
from aggregator_api.rounds.aggregation import StoredUpdate, add_up, aggregate, publish, read_state
from aggregator_api.rounds.secure_rounds import Summed
from aggregator_api.rounds.updates.contract import Contract
from aggregator_api.storage.blobs import BlobStore
from aggregator_api.storage.broadcasts import write_broadcasts
from federation.errors import ImpossibleSumError
from federation.protocol.messages import UpdateManifest

NICE = 5
"""The server's answers go before the aggregation."""


def main() -> None:
    """Work until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are meant for the server, which ends its worker itself
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may be taken for an answer
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # the server was killed: nobody reads the answer, nor what is left of it in a buffer


def serve(jobs: Iterable[bytes], answers: IO[bytes]) -> None:
    """Do every job; what goes wrong in one is its answer."""
    for line in jobs:
        try:
            answer = work(json.loads(line))
        except ImpossibleSumError as error:
            answer = {"impossible": str(error)[:2000]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job of `aggregator_api.rounds.aggregation_executor`."""
    torch.set_num_threads(job["torch_threads"])
    contract, blobs = Contract.from_json(job["contract"]), BlobStore(job["blobs"])
    if job["kind"] == "broadcasts":
        state = read_state(blobs, job["state"])
        return {"broadcasts": write_broadcasts(contract.method, blobs, state, job["cohort"])}
    if job["kind"] == "add_up":
        return add_up(contract, blobs, job["state"], Summed.from_json(job["summed"])).to_json()
    if job["kind"] == "publish":
        contributed = Contributed(*([SumChange(*part) for part in parts] for parts in job["contributed"]))
        return publish(contract, blobs, job["state"], contributed).to_json()
    updates = [
        StoredUpdate(**{**update, "manifest": UpdateManifest.model_validate(update["manifest"])})
        for update in job["updates"]
    ]
    return aggregate(contract, blobs, job["state"], updates, is_newest=job["is_newest"]).to_json()


if __name__ == "__main__":
    main()
