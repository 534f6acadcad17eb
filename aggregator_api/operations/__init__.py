"""Operation of a server: its metrics, its health, and leadership among several instances."""
