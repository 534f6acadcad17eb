"""Pretraining without labels: HART as a masked autoencoder on the windows of many data sets, for `sim run --init`."""

from sim.pretraining.masked import PretrainingSettings, pretrain

__all__ = ["PretrainingSettings", "pretrain"]
