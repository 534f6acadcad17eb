"""The command `gaitway`, and what every package may import: the root of errors, atomic writes, scores, `InputSpec`."""
