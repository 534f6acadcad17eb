"""The networks of a federation: what was asked for, the weights they start from, and how clients get them."""
