"""Starts the training process, `python -m edge_agent.training.entrypoint JOB.json`: sets limits, then loads torch.

Where there may be a GPU, the cap comes later, when it is known what computes (`edge_agent.training.limits`). It is
on private writable memory (RLIMIT_DATA), not on the address space: torch maps twice as much as it touches.
Measured with torch 2.13 (CPU): a round of the CNN touches 324 MB, is charged 352 MB, and maps 857 MB; one of HART 402,
434 and 937 MB.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import sys
from pathlib import Path

from edge_agent.training.job import Job
from edge_agent.training.limits import cap_memory, may_use_gpu
from gaitway import plugins


def limit_resources(job: Job) -> None:
    """Give way to other programs, and cap the memory."""
    with contextlib.suppress(OSError):  # a phone may not let its programs do it
        os.nice(job.nice)
    if not may_use_gpu(job.processor):
        cap_memory(job.memory_mb)


def exit_with_supervisor() -> None:
    """End this process when the other end of its standard input closes, however the supervisor dies.

    The kernel does it, by a signal that nobody handles: a thread that waits would need the interpreter, and memory,
    which a process in a loop of C++ or at its cap does not give it.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # nothing is ever written there: it closed before the signal was asked for
        os._exit(1)


if __name__ == "__main__":
    exit_with_supervisor()
    job = Job.model_validate_json(Path(sys.argv[1]).read_bytes())
    limit_resources(job)
    plugins.allow(job.plugins)
    gc.disable()  # a sixth of the time that torch takes to load, and what is loaded stays
    from edge_agent.training import trainer

    if job.runtime == "torch":
        importlib.import_module("edge_agent.training.torch_runtime")  # loads torch, under the cap
    gc.freeze()
    gc.enable()
    sys.exit(trainer.main(sys.argv[1:]))
