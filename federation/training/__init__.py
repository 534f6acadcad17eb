"""One client's training: the local round, its batches, its optimizer, and predictions by a network."""
