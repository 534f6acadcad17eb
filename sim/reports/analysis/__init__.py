"""What a finished run tells beyond its scores: embeddings, prototypes, attention, margins, discrepancies, gradients.

One file an analysis; each returns an `AnalysisSection`. `analyse` runs those that a run has material for.
"""
