"""The aggregate margin of measured prototypes, by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from federation.records import ClassStats
from sim.reports.analysis.discrepancy import margin, margin_of
from sim.scores.diagnostics import aggregate_margin
from tests.sim.reports.analysis.conftest import Finished


def test_clients_weigh_by_their_examples_of_a_class() -> None:
    # scaled prototypes of class 0: (0, 1) with 3 examples and (1, 0) with 1: their mean is (¼, ¾); class 1 only bob
    # has: (1, 0)
    ada = ClassStats(torch.tensor([3.0, 0.0]), torch.tensor([[3.0, 9.0], [0.0, 0.0]]), torch.zeros(2))
    bob = ClassStats(torch.tensor([1.0, 2.0]), torch.tensor([[5.0, 2.0], [8.0, 4.0]]), torch.zeros(2))
    assert margin_of({"ada": ada, "bob": bob}) == pytest.approx(0.75 * math.sqrt(2))
    assert margin_of({"ada": ada}) is None


def by_definition(prototypes: np.ndarray, counts: np.ndarray) -> float:
    """d⁻ as the paper's symbols say it: p_k[c] (K, C, D) and n_k[c] (K, C); a class that k lacks is left out."""
    clients, classes, _ = prototypes.shape
    aggregate = {}
    for c in range(classes):
        rows = [prototypes[k, c] for k in range(clients) if counts[k, c]]
        scaled = [(p - p.min()) / (p.max() - p.min()) for p in rows]
        if scaled:
            aggregate[c] = np.average(scaled, axis=0, weights=[n for n in counts[:, c] if n])
    distances = [np.linalg.norm(aggregate[c] - aggregate[d]) for c, d in itertools.combinations(aggregate, 2)]
    return float(np.mean(distances))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 4, (5, 6)) * (np.arange(6) > 0)  # nobody has class 0
    prototypes = random.normal(3, 2, (5, 6, 7)) * (counts > 0)[..., None]
    uploads = [
        {"prototypes": torch.from_numpy(p), "counts": torch.from_numpy(n).double()}
        for p, n in zip(prototypes, counts, strict=True)
    ]
    assert aggregate_margin(uploads) == pytest.approx(by_definition(prototypes, counts), rel=1e-12)


def test_the_page_says_why_not_the_printed_formula(finished: Finished) -> None:
    section = margin(finished("fedavg"))
    assert "it is 1 for every model" in " ".join(section.text.split())
    assert section.values["clients"] > 0
    assert section.values["server"] > 0
    assert set(margin(finished("fedper")).values) == {"clients", "rounds"}


def test_the_pages_last_round_of_centralized_training_is_the_recorded_one(finished: Finished) -> None:
    """Everybody's examples count as one client's."""
    section = margin(finished("centralized", analyses="michieli"))
    assert section.values["rounds"]["2"] == pytest.approx(section.values["server"], rel=1e-4)
