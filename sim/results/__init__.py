"""What a run leaves in its directory: records of its rounds, scores, models; the only readers of these files."""
