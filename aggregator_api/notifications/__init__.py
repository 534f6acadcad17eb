"""Tells the operator, by webhook and e-mail, what needs attention; off by default."""
