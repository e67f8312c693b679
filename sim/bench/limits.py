"""What nobody can be faster than: OpenSSL's AES-256-CTR, NumPy adding and copying float32."""

from __future__ import annotations

import secrets

import numpy as np

from flhe.math.prg import BLOCK, CHUNK, AesCtr
from flhe.schemes.flashe.scheme import Flashe
from flhe_lab.bench.contender import Contender, Setting, Work
from flhe_lab.bench.federation import layout_of, terms_of


def limits(setting: Setting) -> list[Contender]:
    """AES over FLASHE's own keystream; an addition that stays in cache; one copy of an update."""
    values, terms = setting.values, terms_of("flashe")
    scheme = Flashe(setting.cohort, terms.bits, terms.masking)
    lane = np.dtype(scheme.packing.lane).itemsize
    length = values + terms.trailer_lanes(layout_of(values))
    sealing, opening = (
        sum(map(len, scheme.mask_terms(senders))) for senders in ((0,), setting.survivors)
    )
    piece = min(values, 1 << 15)
    a, b, c = (np.zeros(piece, np.float32) for _ in range(3))
    source, target = np.zeros(values, np.float32), np.zeros(values, np.float32)

    def add() -> None:
        for _ in range(values // piece):
            np.add(a, b, out=c)
        rest = values % piece
        np.add(a[:rest], b[:rest], out=c[:rest])

    def copy() -> None:
        np.copyto(target, source)

    keystream = {
        "encrypt": _keystream(sealing * length * lane),
        "decrypt": _keystream(opening * length * lane),
    }
    note = (
        f"AES-256-CTR over {sealing} streams to encrypt, {opening} to decrypt, of {length} lanes of "
        f"{8 * lane} bits; on one thread"
    )
    cached = f"pieces of {piece} that stay in cache"
    copies = {"encrypt": copy, "decrypt": copy}
    return [
        Contender("openssl-aes-ctr", keystream, "limit", note),
        Contender("numpy-add-f32", {"add": add}, "limit", cached),
        Contender("numpy-copy-f32", copies, "limit", "one copy of the float32 update"),
    ]


def _keystream(nbytes: int) -> Work:
    out = np.empty(CHUNK + BLOCK, np.uint8)
    key = secrets.token_bytes(32)

    def run() -> None:
        stream = AesCtr().stream(key, 0)
        for at in range(0, nbytes, CHUNK):
            stream.into(out, min(CHUNK, nbytes - at))

    return run
