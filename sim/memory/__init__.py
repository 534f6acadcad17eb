"""How tensors lie in memory: trees as one block of bytes, places that are used again, and how much is free."""
