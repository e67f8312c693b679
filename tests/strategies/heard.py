"""What a relay has heard of an attempt, and what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flhe.coding.support import Support
from flhe.schemes.sealed import Sealed
from tests.mods.harness import APP_INPUTS


@dataclass
class Try:
    """One attempt at a round, as far as the relay has heard; all by rank."""

    supports: dict[int, Support] = field(default_factory=dict)
    updates: dict[int, Sealed] = field(default_factory=dict)
    receipts: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    signatures: dict[tuple[int, ...], dict[int, bytes]] = field(default_factory=dict)
    answers: dict[tuple[int, ...], dict[int, bytes]] = field(default_factory=dict)

    def together(self) -> list[int]:
        """Ranks of most of those whose updates can be added: they are of one slot and mode."""
        like: dict[Any, list[int]] = {}
        for rank, part in sorted(self.updates.items()):
            like.setdefault((part.slot, part.mode), []).append(rank)
        return max(like.values(), key=len, default=[])


@dataclass(frozen=True)
class Result:
    """A sum, and what travels with it."""

    total: Sealed
    release: bytes
    receipts: bytes


def said_of(results: Sequence[Result]) -> dict[str, Any]:
    """What a message says of the sums that it brings."""
    return {
        "sums": [result.total.header() for result in results],
        "releases": [result.release for result in results],
        "receipts": [result.receipts for result in results],
        "app-inputs": [APP_INPUTS for _ in results],
    }
