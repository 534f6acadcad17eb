"""Replays client partitions with the methods, the local round and the round machine of the live programs."""
