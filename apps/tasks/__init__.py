"""Data sets and models that the app trains."""
