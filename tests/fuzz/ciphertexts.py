"""Ciphertexts: what a server adds up, and what members open.

Additive schemes are malleable, so a mutant may open, to other numbers; tags inside a ciphertext tell
that (`flhe.schemes.batchcrypt.batch_mac`). Here it must be refused or give as many integers as the
honest one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.errors import FlheError
from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from tests.fuzz.decoders import ANY, Decoder
from tests.laws import SCHEMES, SLOT, Roles, random_plain

CASES = {
    "flashe-16-double",
    "flashe-29-single",
    "sash-ring-2048-auto-server",
    "sash-lwr-736-auto-server",
    "batchcrypt-16",
    "esafl-16-goldilocks-4096",
    "esafl-16-rns-8192",
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
        plain = random_plain(roles.scheme, VALUES - 2, 2, rng)
        parts.append(to_bytes(sealer.encrypt(plain, SLOT)))
    return roles, parts


def _sum(name: str, first: Sealed) -> Sealed:
    roles, parts = _made(name)
    total = roles.scheme.add(None, first)
    for part in parts[1:]:
        total = roles.scheme.add(total, _copy(from_bytes(part)))
    return roles.scheme.close(total)


def _copy(sealed: Sealed) -> Sealed:
    """With a buffer that may be consumed."""
    return Sealed(
        sealed.scheme, sealed.slot, sealed.senders, sealed.length, sealed.data.copy(), sealed.mode
    )


def _update(name: str, data: bytes) -> Any:
    """The server's part: a mutated update among honest ones."""
    return _open(name, _sum(name, _copy(from_bytes(data))))


def _total(name: str, data: bytes) -> Any:
    """The members' part: a mutated sum."""
    return _open(name, from_bytes(data))


def _open(name: str, total: Sealed) -> Any:
    opened = _made(name)[0].opener.decrypt(total)
    assert opened.shape == (total.length,)
    assert opened.dtype in (np.int32, np.int64)
    return opened


def _updates(name: str) -> list[bytes]:
    return _made(name)[1][:1]


def _totals(name: str) -> list[bytes]:
    roles, parts = _made(name)
    total = _sum(name, _copy(from_bytes(parts[0])))
    try:
        roles.opener.decrypt(total)  # takes the seeds of those who agree on masking keys
    except FlheError as error:
        raise AssertionError from error
    return [to_bytes(total)]


def entries() -> Sequence[Decoder]:
    """Two for each scheme."""
    out = []
    for name in sorted(CASES):
        for what, make, read in (("update", _updates, _update), ("sum", _totals, _total)):
            out.append(
                Decoder(
                    f"{what} of {name}",
                    functools.partial(make, name),
                    functools.partial(read, name),
                    ANY,
                    room=48 << 20,
                )
            )
    return out
