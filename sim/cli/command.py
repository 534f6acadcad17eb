"""The commands' output while they run: a progress bar, the round's line, and errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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

CACHE_HELP = "Folder for processed windows. Default: the folder that `gaitway cache` shows."
CacheOption = Annotated[Path | None, typer.Option(help=CACHE_HELP)]


@contextmanager
def bar(title: str, total: int | None = None) -> Iterator[tuple[ProgressDisplay, TaskID]]:
    """Show one progress bar while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressDisplay(*columns, TimeRemaining(), console=console) as progress:
        yield progress, progress.add_task(title, total=total)


def round_line(record: RoundRecord, task: Task) -> str:
    """Summarize a round in one line."""
    own, loss, name = record.personalization, record.train_loss, task.primary_metric
    score = f" personalization {task.metric_kinds[name].text(own[name].mean)}" if own else ""
    went = record.failed or (f"loss {loss:.3f}" if loss is not None else "measured") + score
    return f"round {record.round} {went}"


@contextmanager
def cli_errors() -> Iterator[None]:
    """Print errors that the user can fix as one line on standard error, and exit with 2."""
    try:
        yield
    except (SimError, FederationError, PipelineError, ModelError, OSError) as error:
        print_error(str(error))
        raise SystemExit(ExitCode.REFUSED) from error


def taking(
    kind: type[Any], more: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show typer a dataclass's fields, and `more` options by their annotations, as a command's parameters.

    The command is called with an object of the dataclass, and with a dictionary of the other options if there are any.
    """
    hints = get_type_hints(kind, include_extras=True)
    own = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
        for field in fields(kind)
    ]
    others = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (more or {}).items()
    ]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            args = kind(**{option.name: given.pop(option.name) for option in own})
            command(args, given) if others else command(args)

        vars(called)["__signature__"] = Signature([*own, *others])
        called.__annotations__ = {option.name: option.annotation for option in (*own, *others)}
        return called

    return decorated


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
