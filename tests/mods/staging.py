"""Rounds of several stages, asked for and read by a test that plays the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from flwr.app import Message

from flhe.coding.support import Support
from flhe.mods import records
from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from flhe.training.terms import Terms
from tests.mods.harness import TERMS, Group, Site, answer

SPARSE = replace(TERMS, top_k=0.5, warmup=0, masking="adaptive")
RANGED = replace(TERMS, clip="exchange")
LAYOUT = 13
"""Floats in the harness's model."""


def group(path: Path, terms: Terms, size: int = 3) -> Group:
    """Sites that have agreed on keys."""
    return Group(path, size, terms).agree()


def support(message: Message) -> Support:
    """The coordinates that a node tells."""
    assert answer(message)["step"] == "supports"
    data = answer(message)["support"]
    assert isinstance(data, bytes)
    return Support.from_bytes(data, LAYOUT)


def ranges(message: Message) -> Sealed:
    """The mean squares in a reply."""
    assert answer(message)["step"] == "ranges"
    data = answer(message)["sealed"]
    assert isinstance(data, bytes)
    return from_bytes(data)


def sparse_update(message: Message, told: Support) -> Sealed:
    """The ciphertext in a reply, with the coordinates that were told before it."""
    assert answer(message)["step"] == "update"
    header = answer(message)["header"]
    assert isinstance(header, bytes)
    return records.to_sealed(header, message.content[records.UPDATE], supports=[told])  # type: ignore[arg-type]


def added(group: Group, parts: Iterable[Sealed]) -> Sealed:
    """The sum of updates, as the server sends it."""
    return group.terms.for_cohort(len(group.sites)).close(group.total(parts))


def sums(group: Group, **fields: int) -> bytes:
    """Everyone's mean squares, as the server makes them."""
    return to_bytes(added(group, [ranges(group.ask(s, **fields)) for s in group.sites]))


def files(site: Site) -> dict[str, bytes]:
    """What is in the directory of its run."""
    return {p.name: p.read_bytes() for p in site.run.iterdir() if p.is_file()}
