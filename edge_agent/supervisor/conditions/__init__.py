"""The conditions for training: their readings, and their evaluation."""
