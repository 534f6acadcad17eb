"""The REST routes: thin, one file per subject."""
