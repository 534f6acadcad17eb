"""Stands in for the training process: leaves a model that does not work, and ends as if all were well."""

from __future__ import annotations

import sys
from pathlib import Path

from edge_agent.training.job import MODEL

if __name__ == "__main__":
    (Path(sys.argv[1]).parent / MODEL).write_bytes(b"nothing")
