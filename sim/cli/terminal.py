"""What the commands show while they work: a progress bar, the round's line, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeRemaining

from federation.errors import FederationError
from federation.tasks.task import Task
from gaitway.errors import ExitCode
from gaitway.terminal import Console, ProgressDisplay, print_error
from har_pipeline import PipelineError
from models.errors import ModelError
from sim.errors import SimError
from sim.scores.records import RoundRecord

console = Console()

CACHE_HELP = "Where processed windows are kept. Default: the folder that `gaitway cache` shows."
CacheOption = Annotated[Path | None, typer.Option(help=CACHE_HELP)]


@contextmanager
def bar(title: str, total: int | None = None) -> Iterator[tuple[ProgressDisplay, TaskID]]:
    """Show one progress bar as long as the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressDisplay(*columns, TimeRemaining(), console=console) as progress:
        yield progress, progress.add_task(title, total=total)


def round_line(record: RoundRecord, task: Task) -> str:
    """Say in a few words how a round went."""
    own, loss, name = record.personalization, record.train_loss, task.primary_metric
    score = f" personalization {task.metric_kinds[name].text(own[name].mean)}" if own else ""
    went = record.failed or (f"loss {loss:.3f}" if loss is not None else "measured") + score
    return f"round {record.round} {went}"


@contextmanager
def cli_errors() -> Iterator[None]:
    """Print errors that the user can mend as one line on standard error, and exit with 2."""
    try:
        yield
    except (SimError, FederationError, PipelineError, ModelError, OSError) as error:
        print_error(str(error))
        raise SystemExit(ExitCode.REFUSED) from error
