"""Label skew by Dirichlet draws, with sizes that follow from them or a power law.

`Dirichlet` has the two readings of the literature. `axis="class"`: Yurochkin et al., "Bayesian nonparametric federated
learning of neural networks", ICML 2019; as in the code of Li, He and Song, "Model-contrastive federated learning", CVPR
2021. For each class, proportions over the clients are Dir(α, …, α); everything is handed out and sizes are unequal.
Qiao et al. 2023 cite the former and deal 2,000 examples with α = 0.05. `axis="client"`: Hsu, Qi and Brown, "Measuring
the effects of non-identical data distribution for federated visual classification", 2019 (arXiv 1909.06335). For each
client, proportions over the classes are Dir(α·C·prior), that is Dir(α, …, α) where the classes are equally large; sizes
are equal.

Sizes by a power law, and classes by Dirichlet draws: the Pascal VOC federations of Michieli and Ozay 2021.
U. Michieli, M. Ozay, arXiv 2105.08982, sections 4 and S1.3: 'The number of samples per client follows a power-law
distribution with parameter γ = 3', classes by a Dirichlet distribution as in Hsu et al. (see `dirichlet`, axis
"client"). They report 66.7 ± 25.7 samples a client, of 6,665 samples and 100 clients, and no formula.

Here P(N ≥ n) ∝ n^−γ, and the sizes are that law's own quantiles: the k-th largest of K clients has k^(−1/γ) parts. Of
6,665 samples and 100 clients that is 66.7 ± 26.9, whatever the seed; the seed says who is which. Samples drawn from the
law have deviations of 21 to 55 (5 % to 95 % of draws), the paper's 25.7 being the first quartile of them. The other
readings are further off: a density ∝ n^−γ, which is γ − 1 here, has 47.2, and numpy's `power(γ)` 17.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from federation.seeds import generator
from sim.data.partitions.partition import Counts, LabelPartition, Sizes, apportion, thinned
from sim.errors import SettingsError

MAX_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Dirichlet(LabelPartition):
    """Draw proportions with concentration `alpha`: small is skewed, large is even.

    `minimum` is the fewest examples that a client may have: a draw that leaves one with fewer is thrown away, up to a
    thousand times. `capped`, for axis "class": a client that holds its equal share gets nothing of further classes.
    `examples` limits how many are dealt (None: all); with axis "class", in the proportions of the classes.
    """

    kind: ClassVar[str] = "dirichlet"
    alpha: float = 0.3
    axis: Literal["class", "client"] = "class"
    minimum: int = 10
    capped: bool = True
    examples: int | None = None

    def __post_init__(self) -> None:
        """Refuse an alpha that is no concentration, and a minimum below 1; raises SettingsError."""
        super().__post_init__()
        if not 1e-3 <= self.alpha <= 1e6:
            raise SettingsError(f"dirichlet: alpha is {self.alpha}; it must lie between 0.001 and 1000000")
        if self.minimum < 1:
            raise SettingsError(f"dirichlet: minimum is {self.minimum}; a client needs at least 1 example")

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C) of the first draw that gives everybody the minimum."""
        dealt = thinned(sizes, self.examples)
        if dealt.sum() < self.clients * self.minimum:
            raise SettingsError(
                f"dirichlet: {dealt.sum()} examples for {self.clients} clients of at least {self.minimum}; "
                "use fewer clients, a smaller minimum, or more examples"
            )
        return self._by_class(dealt, seed) if self.axis == "class" else self._by_client(sizes, int(dealt.sum()), seed)

    def _by_class(self, sizes: Sizes, seed: int) -> Counts:
        for draw in range(MAX_DRAWS):
            table = self._drawn(sizes, seed, draw)
            if table.sum(axis=1).min() >= self.minimum:
                return table
        raise SettingsError(
            f"dirichlet: none of {MAX_DRAWS} draws with alpha {self.alpha} gave each of {self.clients} clients "
            f"{self.minimum} examples; use fewer clients, a larger alpha, or a smaller minimum"
        )

    def _drawn(self, sizes: Sizes, seed: int, draw: int) -> Counts:
        table = np.zeros((self.clients, len(sizes)), dtype=np.int64)
        for c, size in enumerate(sizes):
            random = generator(seed, "dirichlet", "class", c, draw)
            proportions = random.dirichlet(np.full(self.clients, self.alpha))
            if self.capped:
                proportions = _among(table.sum(axis=1) * self.clients < sizes.sum(), proportions)
            table[:, c] = apportion(int(size), proportions)
        return table

    def _by_client(self, sizes: Sizes, examples: int, seed: int) -> Counts:
        return draw_client_counts(apportion(examples, np.ones(self.clients)), sizes, self.alpha, seed)


def draw_client_counts(totals: Sizes, sizes: Sizes, alpha: float, seed: int) -> Counts:
    """Return (K, C): client k gets totals[k] examples, in proportions over the classes from Dir(α·C·prior).

    One client is served after another; where a class runs out its proportion goes to those that are left.
    """
    left = sizes.copy()
    prior = sizes[sizes > 0] / sizes.sum()
    rows = np.zeros((len(totals), len(sizes)), dtype=np.int64)
    for k, total in enumerate(totals):
        drawn = np.zeros(len(sizes))
        random = generator(seed, "dirichlet", "client", k)
        drawn[sizes > 0] = random.dirichlet(alpha * len(prior) * prior)
        rows[k] = _taken(int(total), drawn, left)
        left -= rows[k]
    return rows


def _among(open_: np.ndarray, proportions: np.ndarray) -> np.ndarray:
    """Keep the proportions (K,) of those that are open; alike, where these are too small to be divided by."""
    kept = np.where(open_, proportions, 0.0)
    return kept if kept.sum() > np.finfo(float).tiny else open_.astype(float)


def _taken(total: int, proportions: np.ndarray, left: Sizes) -> Sizes:
    """Take `total` of what is left (C,) in these proportions, as near as the classes allow."""
    taken = np.zeros_like(left)
    while (missing := total - int(taken.sum())) > 0:
        wish = apportion(missing, _among(left > taken, proportions))
        taken += np.minimum(wish, left - taken)
    return taken


@dataclass(frozen=True, kw_only=True)
class PowerLaw(LabelPartition):
    """Sizes ∝ k^(−1/γ), k = 1, …, K in random order; of each client the proportions over classes are Dir(α·C·prior).

    A large `gamma` makes sizes equal, a large `alpha` proportions. `examples` limits how many are dealt (None: all).
    """

    kind: ClassVar[str] = "power_law"
    test: Literal["published", "split"] = "split"
    clients: int = 100
    gamma: float = 3.0
    alpha: float = 1.0
    examples: int | None = None

    def __post_init__(self) -> None:
        """Refuse an exponent or a concentration that is none; raises SettingsError."""
        super().__post_init__()
        if not 1e-3 <= self.alpha <= 1e6:
            raise SettingsError(f"power_law: alpha is {self.alpha}; it must lie between 0.001 and 1000000")
        if not 0.5 <= self.gamma <= 1e6:
            raise SettingsError(f"power_law: gamma is {self.gamma}; it must lie between 0.5 and 1000000 (equal sizes)")

    def counts(self, sizes: Sizes, seed: int) -> Counts:
        """Return (K, C)."""
        examples = int(thinned(sizes, self.examples).sum())
        if examples < 2 * self.clients:
            raise SettingsError(
                f"power_law: {examples} examples for {self.clients} clients, which need one to train and one to test "
                f"on; use fewer clients or more examples"
            )
        return draw_client_counts(self._totals(examples, seed), sizes, self.alpha, seed)

    def _totals(self, examples: int, seed: int) -> Sizes:
        ranks = 1 + generator(seed, "power_law").permutation(self.clients)
        totals = apportion(examples, ranks ** (-1 / self.gamma))
        return totals if totals.min() >= 2 else apportion(examples, ranks ** (-1 / self.gamma), at_least=2)
