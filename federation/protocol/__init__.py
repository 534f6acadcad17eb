"""The live protocol without I/O and without torch: topics, messages, chunks."""
