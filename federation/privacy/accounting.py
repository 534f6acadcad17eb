"""Privacy accounting: computes ε for each kind of noise with Google's dp-accounting.

Devices, server, simulation and attacks' report ask here. Without noise ε is infinite; with what has not been used yet
it is 0.
"""

from __future__ import annotations

import math
from types import ModuleType

from federation.errors import SettingsError
from gaitway.own_packages import install_command


def spent(noise_multiplier: float) -> float:
    """Return 1/z², what one round adds to a client's account; infinity without noise."""
    return 1 / noise_multiplier**2 if noise_multiplier else math.inf


def epsilon(inverse_variance: float, delta: float) -> float:
    """Return the ε of a client whose rounds had noise multipliers z_i, from Σ 1/z_i²; infinity if one had no noise.

    Gaussian mechanisms compose to one of multiplier (Σ 1/z_i²)^-½, whose ε at δ is exact (B. Balle, Y.-X. Wang, ICML
    2018, arXiv 1805.06530).

    Raises:
        SettingsError: if dp-accounting is not installed.
    """
    if inverse_variance == 0:
        return 0.0
    if math.isinf(inverse_variance):
        return math.inf
    return float(_library().get_epsilon_gaussian(inverse_variance**-0.5, delta))


def epsilon_of_discrete(inverse_variance: float, delta: float) -> float:
    """Return the ε of a client in sums whose discrete Gaussians had multipliers z_i, from Σ 1/z_i².

    One is ρ = 1 / 2z² zero-concentrated, as a Gaussian is, and ρ adds up; of their Rényi divergences α ρ, which are the
    same (C. Canonne, G. Kamath, T. Steinke, NeurIPS 2020, arXiv 2004.00010, theorem 4), the Rényi accountant makes ε.

    Raises:
        SettingsError: if dp-accounting is not installed.
    """
    if inverse_variance == 0:
        return 0.0
    multiplier = 0.0 if math.isinf(inverse_variance) else inverse_variance**-0.5
    return _renyi(multiplier, delta, share=1, steps=1)


def epsilon_of_rounds(noise_multiplier: float, rounds: int, delta: float, *, on_sums: bool) -> float:
    """Return the ε of a client whose numbers are in so many rounds; on_sums: clients add the noise themselves.

    Raises:
        SettingsError: if dp-accounting is not installed.
    """
    account = epsilon_of_discrete if on_sums else epsilon
    return account(rounds * spent(noise_multiplier), delta)


def epsilon_of_epochs(noise_multiplier: float, epochs: int, delta: float) -> float:
    """Return ε at δ of an example after so many epochs (of all rounds together), each example once in each.

    Raises:
        SettingsError: if dp-accounting is not installed.
    """
    return epsilon(epochs * spent(noise_multiplier), delta)


def epsilon_of_poisson(noise_multiplier: float, share: float, steps: int, delta: float) -> float:
    """Return ε at δ of steps whose batches were secret Poisson samples, each example with this share.

    To compare with the literature: no batch of ours is one (see `example_level`).

    Raises:
        SettingsError: if dp-accounting is not installed.
    """
    return _renyi(noise_multiplier, delta, share, steps)


def _renyi(noise_multiplier: float, delta: float, share: float, steps: int) -> float:
    if not noise_multiplier:
        return math.inf
    library = _library()
    event = library.GaussianDpEvent(noise_multiplier)
    sampled = event if share == 1 else library.PoissonSampledDpEvent(share, event)
    return float(library.rdp.RdpAccountant().compose(sampled, steps).get_epsilon(delta))


def _library() -> ModuleType:
    try:
        import dp_accounting  # takes a second, and only private federations need it
    except ImportError as error:
        raise SettingsError(f"computing ε needs dp-accounting: {install_command('privacy')}") from error
    found: ModuleType = dp_accounting
    return found
