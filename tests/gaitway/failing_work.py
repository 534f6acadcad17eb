"""Work that fails once, and threads that begin again at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gaitway import threads
from gaitway.threads import thread_failures


@pytest.fixture
def restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let failed work begin again without a pause, and forget the failures of other tests."""
    monkeypatch.setattr(threads, "MIN_PAUSE_S", 0.001)
    thread_failures.clear()
    yield
    thread_failures.clear()


def failing_once(work: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The same work, whose first call raises."""
    errors = [error]

    def call(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return work(*arguments, **options)

    return call
