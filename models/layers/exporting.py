"""A context in which layers use only ONNX operators, for export.

Within `exporting()` a layer computes by what ONNX has, to the same bits where it draws masks or breaks ties. It is one
process's matter for the moment of one export, so a context variable holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)


@contextmanager
def exporting() -> Iterator[None]:
    """Let layers compute by what ONNX has."""
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)


def is_exporting() -> bool:
    """Whether a graph for ONNX is being made of this computation."""
    return _EXPORTING.get()


def _lifts_views() -> bool:
    try:
        torch.func.vmap(lambda words: words.view(torch.int16))(torch.zeros(1, 1, dtype=torch.int32))
    except RuntimeError:
        return False
    return True


_LIFTS_VIEWS = _lifts_views()


def reads_bytes() -> bool:
    """Whether a tensor's bytes may be read as another type: ONNX cannot, and torch's vmap not before 2.13."""
    return _LIFTS_VIEWS and not is_exporting()


def leaves_layout_alone() -> bool:
    """Whether somebody else decides how tensors lie in memory: a compiler, or whoever runs an exported graph."""
    return is_exporting() or torch.compiler.is_compiling()
