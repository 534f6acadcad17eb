"""The command `gaitway`, and what every package may import: errors' root, atomic writes, scores, inputs, images."""
