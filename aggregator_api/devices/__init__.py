"""Devices: who they are, how they come in, and how an operator handles them."""
