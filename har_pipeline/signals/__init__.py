"""Whether recordings are what they are said to be: units, rates, channels, times."""
