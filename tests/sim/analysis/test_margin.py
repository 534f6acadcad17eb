"""The aggregate margin of measured prototypes, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from federation.records import ClassStats
from sim.analysis.margin import margin, margin_of
from tests.sim.analysis.conftest import Finished


def test_clients_weigh_by_their_examples_of_a_class() -> None:
    # normalised prototypes of class 0: (0, 1) with 3 examples and (1, 0) with 1: their mean is (¼, ¾), again (0, 1)
    # when it is normalised; class 1 only bob has: (1, 0)
    ada = ClassStats(torch.tensor([3.0, 0.0]), torch.tensor([[3.0, 9.0], [0.0, 0.0]]), torch.zeros(2))
    bob = ClassStats(torch.tensor([1.0, 2.0]), torch.tensor([[5.0, 2.0], [8.0, 4.0]]), torch.zeros(2))
    assert margin_of({"ada": ada, "bob": bob}) == pytest.approx(math.sqrt(2))
    assert margin_of({"ada": ada}) is None


def test_the_page_says_why_not_the_printed_formula(finished: Finished) -> None:
    section = margin(finished("fedavg"))
    assert "it is 1 for\nevery model" in section.text
    assert section.values["clients"] > 0
    assert section.values["server"] > 0
    assert set(margin(finished("fedper")).values) == {"clients", "rounds"}
