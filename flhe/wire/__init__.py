"""Encodings for the wire and the disk: one value, one encoding, and one label for each key."""
