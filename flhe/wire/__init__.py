"""What is written to disk or the wire: canonical CBOR, records, labels, codes."""
