"""What keeps a server running: its metrics, its health, and which of several instances leads."""
