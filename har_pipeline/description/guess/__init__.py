"""Guesses a first description of unknown files: their text, columns, units and names, and how sure each is."""
