"""Systems that add what they cannot read, a folder each."""

DEFAULT = "flashe"
"""The scheme where nobody names one."""

PLAIN = "plain"
"""What stands in place of a scheme where nothing is encrypted: a node allows it only by name."""
