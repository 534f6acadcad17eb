"""What is removed from the server, by an operator or by age, and what must stay."""
