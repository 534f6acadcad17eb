"""What the server tells about itself and keeps for those who must answer for it."""
