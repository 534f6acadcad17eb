"""Differential privacy: limits what published models reveal about one client."""
