"""What a federation's published models tell of one client."""
