"""A first description of unknown files: what is guessed of their text, columns, units and names, and how surely."""
