"""Codecs: floats to integers that schemes can add, and back."""
