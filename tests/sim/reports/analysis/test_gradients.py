"""The section on gradients: at the server's last model, and what the rounds measured."""

from __future__ import annotations

import pytest

from sim.errors import AnalysisError
from sim.reports.analysis.gradients import gradients
from tests.sim.reports.analysis.conftest import Finished


def test_a_run_at_its_servers_model(finished: Finished) -> None:
    section = gradients(finished("fedavg"))
    assert section.values["dissimilarity"] > 0
    assert len(section.values["client_squares"]) == 2


def test_a_method_without_a_servers_model_says_so(finished: Finished) -> None:
    with pytest.raises(AnalysisError, match="no global model in a run of fedper"):
        gradients(finished("fedper"))
