"""All decoders together."""

from __future__ import annotations

import functools

from tests.fuzz import ciphertexts, declared, folders, masked, plain, signed, sites, stored
from tests.fuzz.decoders import Decoder


@functools.cache
def all_decoders() -> dict[str, Decoder]:
    """By name."""
    found = [
        decoder
        for module in (signed, masked, sites, plain, stored, folders, ciphertexts, declared)
        for decoder in module.entries()
    ]
    by_name = {decoder.name: decoder for decoder in found}
    assert len(by_name) == len(found)
    return by_name
