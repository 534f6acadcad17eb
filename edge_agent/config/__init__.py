"""The agent's settings, section by section."""
