"""Sizes by a power law, and classes by Dirichlet draws: the Pascal VOC federations of Michieli and Ozay 2021.

U. Michieli, M. Ozay, arXiv 2105.08982, sections 4 and S1.3: 'The number of samples per client follows a power-law
distribution with parameter γ = 3', classes by a Dirichlet distribution as in Hsu et al. (see `dirichlet`, axis
"client"). They report 66.7 ± 25.7 samples a client, of 6,665 samples and 100 clients, and no formula.

Here P(N ≥ n) ∝ n^−γ, and the sizes are that law's own quantiles: the k-th largest of K clients has k^(−1/γ) parts.
Of 6,665 samples and 100 clients that is 66.7 ± 26.9, whatever the seed; the seed says who is which. Samples drawn from
the law have deviations of 21 to 55 (5 % to 95 % of draws), the paper's 25.7 being the first quartile of them. The other
readings are further off: a density ∝ n^−γ, which is γ − 1 here, has 47.2, and numpy's `power(γ)` 17.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.seeds import generator
from sim.data.partitions.apportion import apportion, thinned
from sim.data.partitions.dirichlet import draw_client_counts
from sim.data.partitions.partition import Counts, LabelPartition, Sizes
from sim.errors import SettingsError


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
                f"power_law: {examples} examples for {self.clients} clients, who need one to train and one to be "
                "tested on; take fewer clients or more examples"
            )
        return draw_client_counts(self._totals(examples, seed), sizes, self.alpha, seed)

    def _totals(self, examples: int, seed: int) -> Sizes:
        ranks = 1 + generator(seed, "power_law").permutation(self.clients)
        totals = apportion(examples, ranks ** (-1 / self.gamma))
        return totals if totals.min() >= 2 else apportion(examples, ranks ** (-1 / self.gamma), at_least=2)
