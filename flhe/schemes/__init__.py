"""Schemes that add vectors they cannot read, a folder each."""

DEFAULT = "flashe"
"""The scheme used if none is named."""

PLAIN = "plain"
"""Name that stands for no encryption; a node allows it only if its config lists it."""
