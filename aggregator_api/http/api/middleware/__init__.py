"""What every request passes before its route: who it is, how much it may ask, how large it may be."""
