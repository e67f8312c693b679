"""Floats to what a scheme can carry, and back."""
