"""What the server does with a round's updates."""
