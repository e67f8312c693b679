"""Ciphertexts: what a server adds up, and what members open.

Additive schemes are malleable, so a mutant may open, to other numbers; the tags of sums tell
that (`flhe.schemes.sum_mac`). Here it must be refused or give as many integers as the
honest one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from tests.fuzz.decoders import ANY, Decoder
from tests.laws import SCHEMES, SLOT, Roles, random_plain

CASES = {
    "flashe-16-double",
    "sash-ring-2048-auto-server",
    "batchcrypt-16",
    "esafl-16-goldilocks-4096",
    "fedml-he-16-4096",
}
VALUES = 40


@functools.cache
def _made(name: str) -> tuple[Roles, list[bytes]]:
    """Everybody's part, and three updates; the openers' keys are those of the honest sums."""
    [case] = [case for case in SCHEMES if case.id == name]
    roles, rng = case.roles(3, same=True), np.random.default_rng(1)
    parts = []
    for sealer in roles.sealers:
        plain = random_plain(roles.adder, VALUES - 2, 2, rng)
        parts.append(to_bytes(sealer.encrypt(plain, SLOT)))
    return roles, parts


def _sum(name: str, first: bytes) -> Sealed:
    """The server's part: an update among honest ones."""
    roles, (_, *others) = _made(name)
    total = None
    for part in map(from_bytes, (first, *others)):
        total = roles.adder.add(total, replace(part, data=part.data.copy()))  # it may be consumed
    assert total is not None
    return roles.adder.close(total)


def _open(name: str, total: Sealed) -> Any:
    """The members' part."""
    opened = _made(name)[0].opener.decrypt(total)
    assert opened.shape == (total.length,)
    assert opened.dtype in (np.int32, np.int64)
    return opened


def _honest_sum(name: str) -> list[bytes]:
    total = _sum(name, _made(name)[1][0])
    _open(name, total)  # takes the seeds of those who agree on masking keys
    return [to_bytes(total)]


def _both(name: str) -> Sequence[Decoder]:
    def update(data: bytes) -> Any:
        return _open(name, _sum(name, data))

    def total(data: bytes) -> Any:
        return _open(name, from_bytes(data))

    return (
        Decoder(f"update of {name}", lambda: _made(name)[1][:1], update, ANY, room=48 << 20),
        Decoder(f"sum of {name}", lambda: _honest_sum(name), total, ANY, room=48 << 20),
    )


def entries() -> Sequence[Decoder]:
    """Two for each scheme."""
    return [decoder for name in sorted(CASES) for decoder in _both(name)]
