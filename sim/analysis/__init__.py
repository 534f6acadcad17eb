"""What is asked of a finished federation: new clients, baselines, the papers' analyses."""
