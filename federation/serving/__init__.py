"""Which of a client's models it serves with."""
