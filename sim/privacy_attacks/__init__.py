"""Attacks on what a federation's server sees of single devices: labels, windows, features, and who was trained on.

`attack` runs them on one round of a run; `sim.reports.privacy` makes a page of what they found.
"""

from sim.privacy_attacks.attack import ATTACKS, AttackOptions, AttackResults, attack

__all__ = ["ATTACKS", "AttackOptions", "AttackResults", "attack"]
