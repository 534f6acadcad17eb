"""Layers that several networks share: ALP, attention, dropout, normalization."""
