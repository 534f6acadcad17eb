"""Tensors as blocks of bytes that processes share, in memory or in a mapped file, and how much is free."""
