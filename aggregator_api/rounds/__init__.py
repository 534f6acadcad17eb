"""Rounds: a cohort is drawn, announced, awaited and aggregated; rows first, then the effect."""
