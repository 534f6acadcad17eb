"""What a run's models are worth: evaluation, diagnostics, and the round that counts."""
