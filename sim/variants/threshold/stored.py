"""What a member keeps of a shared key, and what it shows one other: as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError
from flhe.math.ring import Elements
from flhe.wire.arrays import array
from flhe.wire.fields import SECRET, Hash
from flhe.wire.record import Form, Record
from flhe.wire.secret import Secret
from flhe_lab.variants.threshold.adder import PublicKey, ThresholdRlwe
from flhe_lab.variants.threshold.keys import Box, Drawn, ThresholdKey

MAX_BYTES = 1 << 20
"""Longest encoding: of a key in the ring of 8192 coefficients, some 400 KB."""

_Words = Annotated[NDArray[np.uint64], array(np.uint64)]
_Small = Annotated[NDArray[np.int8], array(np.int8)]
_Secret = Annotated[Hash, SECRET]


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn(Record):
    FORM = Form("part of a threshold key", MAX_BYTES, "threshold-part", 1, row=True)

    rank: int
    crs: Hash
    own: _Small = field(repr=False)
    b: _Words = field(repr=False)
    key: _Secret


@dataclass(frozen=True, slots=True, eq=False)
class _Box(Record):
    FORM = Form("share of a threshold key", MAX_BYTES, row=True)

    b: _Words = field(repr=False)
    share: _Words = field(repr=False)
    seed: _Secret


@dataclass(frozen=True, slots=True, eq=False)
class _Key(Record):
    FORM = Form("threshold key", MAX_BYTES, "threshold-key", 1, row=True)

    rank: int
    share: _Words = field(repr=False)
    pairs: tuple[Annotated[bytes, SECRET], ...]
    crs: Hash
    b: _Words = field(repr=False)
    noise: _Secret


def of_drawn(drawn: Drawn) -> bytes:
    """A part of the key."""
    return _Drawn(drawn.rank, drawn.crs, drawn.own, drawn.b.reshape(-1), drawn.key).to_bytes()


def drawn_in(adder: ThresholdRlwe, data: bytes) -> Drawn:
    """Inverse of `of_drawn`; ProtocolError for anything else."""
    kept = _Drawn.from_bytes(data)
    return Drawn(kept.rank, kept.crs, kept.own, _shaped(adder, kept.b), Secret(kept.key))


def of_box(box: Box) -> bytes:
    """What one member has for another."""
    return _Box(box.b.reshape(-1), box.share.reshape(-1), box.seed).to_bytes()


def box_in(adder: ThresholdRlwe, data: bytes) -> Box:
    """Inverse of `of_box`; ProtocolError for anything else, a residue that is too large too."""
    box = _Box.from_bytes(data)
    return Box(_shaped(adder, box.b), _shaped(adder, box.share), Secret(box.seed))


def of_key(key: ThresholdKey) -> bytes:
    """What a member holds."""
    public, share = key.public, key.share.reshape(-1)
    return _Key(key.rank, share, key.pairs, public.crs, public.b.reshape(-1), key.noise).to_bytes()


def key_in(adder: ThresholdRlwe, data: bytes) -> ThresholdKey:
    """Inverse of `of_key`; ProtocolError for anything else."""
    kept = _Key.from_bytes(data)
    public = PublicKey(kept.crs, _shaped(adder, kept.b))
    share = _shaped(adder, kept.share)
    return ThresholdKey(kept.rank, share, tuple(kept.pairs), public, Secret(kept.noise))


def _shaped(adder: ThresholdRlwe, flat: NDArray[np.uint64]) -> Elements:
    moduli, n = adder.slots.moduli, adder.sizes.n
    if flat.size != len(moduli) * n:
        raise ProtocolError(
            f"threshold key: {flat.size} residues, {len(moduli)} times {n} are needed"
        )
    rows = flat.reshape(len(moduli), n)
    if any(int(row.max()) >= q for row, q in zip(rows, moduli, strict=True)):
        raise ProtocolError("threshold key: a residue that is not below its modulus")
    return rows
