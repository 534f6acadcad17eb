"""Turns samples of any order and rate into windows, with one causal implementation for batches and devices."""
