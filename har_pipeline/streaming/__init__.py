"""From samples in any order and rate to windows: one causal implementation for batches and devices."""
