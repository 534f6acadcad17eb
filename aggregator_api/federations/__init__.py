"""Federations' life cycle: created from a plan, changed, paused and ended by the operator."""
