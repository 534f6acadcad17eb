"""The command `gaitway`, and the code that every package shares: base errors, atomic writes, scores, inputs, images."""
