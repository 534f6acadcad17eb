"""Checks that recordings are as described: units, rates, channels, times."""
