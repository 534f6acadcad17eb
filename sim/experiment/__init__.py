"""What a run is: its options, its settings, its networks, and what it refuses."""
