"""Test vectors that clients in other languages are held to, and what holds Python to them."""
