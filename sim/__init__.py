"""Replays client partitions: the same methods, local round and round machine as the live programs, many clients at once."""
