"""Analyses of finished runs beyond their scores: embeddings, prototypes, attention, margins, discrepancies, gradients.

One file an analysis; each returns a `ReportSection`. `analyse` runs those that a run has material for.
"""
