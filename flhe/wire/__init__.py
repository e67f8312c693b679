"""What crosses the wire or is written to disk: one value, one encoding, and one label for each key."""
