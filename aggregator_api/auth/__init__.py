"""Who asks, from where, and what they may do; and what the server itself vouches for."""
