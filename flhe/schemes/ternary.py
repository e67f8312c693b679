"""Ternary polynomials, which SEAL's keys are: drawn, packed five coefficients a byte, and checked.

Coefficients are uniform in {-1, 0, 1}, as SEAL draws them and the Homomorphic Encryption Standard takes
them to be.

Source: Microsoft SEAL 4.1 (`KeyGenerator`); Homomorphic Encryption Standard (2018), Table 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.wire.secret import Random

Ternary = NDArray[np.int8]

TRIT = 3
PER_BYTE = 5
"""Coefficients in one byte: 3^5 = 243."""
_PLACES = np.array([3**k for k in range(PER_BYTE)], np.int64)


def draw(n: int, random: Random) -> Ternary:
    """A fresh polynomial, int8 (n,).

    Raises
    ------
    ConfigError
        A random source that gives another number of bytes than asked for.
    """
    out = np.empty(0, np.int8)
    while out.size < n:
        data = random(n)
        if len(data) != n:
            raise ConfigError(f"the random source gave {len(data)} bytes, {n} were asked for")
        drawn = np.frombuffer(data, np.uint8)
        # 255 is a multiple of 3: without the last byte value, all three are equally likely.
        trits = (drawn[drawn < 255] % TRIT).astype(np.int8) - np.int8(1)
        out = np.concatenate([out, trits])
    return out[:n].copy()


def pack(s: Ternary) -> bytes:
    """Five coefficients a byte, the first lowest; the bytes are as secret as the polynomial."""
    trits = np.zeros(-(-s.size // PER_BYTE) * PER_BYTE, np.int64)
    trits[: s.size] = s.astype(np.int64) + 1
    return (trits.reshape(-1, PER_BYTE) @ _PLACES).astype(np.uint8).tobytes()


def unpack(data: bytes, n: int, what: str) -> Ternary:
    """Inverse of `pack`; ProtocolError, naming `what` it should be, for anything else."""
    packed = np.frombuffer(data, np.uint8).astype(np.int64)
    trits = (packed[:, None] // _PLACES % TRIT).reshape(-1)
    whole = packed.size == -(-n // PER_BYTE) and not trits[n:].any()
    if not whole or packed.max() >= TRIT**PER_BYTE:
        raise ProtocolError(f"{what}: not the coefficients of one key")
    return (trits[:n] - 1).astype(np.int8)


def check_drawn(s: Ternary, whose: str) -> None:
    """Refuse a key that no honest member drew; ProtocolError.

    A third of the coefficients has each value: a share that is ten standard deviations off was not
    drawn.
    """
    shares = np.bincount(s.astype(np.int64) + 1, minlength=TRIT)
    if np.abs(shares - s.size / TRIT).max() > 10 * (s.size * 2 / 9) ** 0.5:
        raise ProtocolError(f"{whose}: the key pair is unusable, its key is not random")


def lift(s: Ternary, q: int) -> NDArray[np.uint64]:
    """The polynomial modulo q, uint64 (n,)."""
    signed = s.astype(np.int64)  # first: q has no place in 8 bits
    return np.where(signed < 0, signed + q, signed).astype(np.uint64)
