"""Reads what `make_vectors.py` writes."""

from __future__ import annotations

from typing import Any


def unhex(value: Any) -> Any:
    """Bytes are {"hex": ...} in a file."""
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["hex"]) if "hex" in value else {k: unhex(value[k]) for k in value}
