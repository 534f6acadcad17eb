"""Hostile clients and hostile sums."""
