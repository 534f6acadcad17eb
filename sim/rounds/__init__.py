"""The simulated round: cohort, training, collection, aggregation, and the checkpoint after it."""
