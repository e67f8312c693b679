"""What a user of Paillier would pick instead: python-paillier (phe), a value or a batch a ciphertext.

A whole update would take it hours, so a sample of ciphertexts is measured, and projected: seconds of
the sample times how many more ciphertexts an update has. That is exact but for how the machine's speed
varies, since every ciphertext costs the same; rows and notes say "projected" all the same.

One value a ciphertext is how phe is used, and how FATE used it (BatchCrypt, Sec. 5): floats encode
exactly, with an exponent each, and adding values of different exponents aligns them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.slots import Slots
from flhe.errors import ConfigError
from flhe.packages import install_hint
from flhe.schemes.tags import TAG_BITS
from flhe.sim.contenders import Contender, Kind, Setting, Timed, Vector, worst

KEY_BITS = 3072
SAMPLE = 16
"""Ciphertexts that are measured."""

REPEATS = 3
EXPONENT_BYTES = 4
"""Of the exponent that travels with a value's ciphertext; phe's own JSON takes twice the bytes."""

BITS = 16
"""Bits of a value in a batch, sign included."""


class PheValues:
    """One float a ciphertext, `EncryptedNumber`s.

    Parameters
    ----------
    setting, updates
        As for every contender.
    keys : tuple
        phe's public and private key.
    """

    kind: Kind = "peer"
    max_repeats = REPEATS

    def __init__(self, setting: Setting, updates: Sequence[Vector], keys: tuple[Any, Any]) -> None:
        public, private = keys
        count = min(SAMPLE, setting.values)
        picked = np.linspace(0, setting.values - 1, count).astype(np.intp)
        self.projection = setting.values / count
        self.name = f"phe-{public.n.bit_length()} a value, projected"
        self.note = (
            f"{_phe_version()} with gmpy2; projected from {count} ciphertexts to {setting.values:,}, "
            f"one a value; at most {REPEATS} repeats"
        )
        self.upload_bytes: int | None = setting.values * (
            _ciphertext_bytes(public) + EXPONENT_BYTES
        )
        self._samples = [updates[j][picked] for j in setting.survivors]
        parts = [[public.encrypt(float(x)) for x in sample] for sample in self._samples]
        total = parts[0]
        for part in parts[1:]:
            total = [a + b for a, b in zip(total, part, strict=True)]
        self.mean: Vector = np.empty(0, np.float32)
        own = self._samples[0]

        def decrypt() -> None:
            sums = [private.decrypt(c) for c in total]
            self.mean = np.array(sums, np.float64).astype(np.float32) / np.float32(len(parts))

        self.encrypt: Timed = lambda: [public.encrypt(float(x)) for x in own]
        self.add: Timed = lambda: [a + b for a, b in zip(parts[0], parts[1], strict=True)]
        self.decrypt: Timed = decrypt

    def max_error(self) -> float:
        """Of the sample, against the float64 mean of the survivors' values."""
        return worst(self.mean, self._samples)


class PheBatches:
    """The batches that ours encrypts, by phe's `raw_encrypt`: the same plaintexts, another library.

    Parameters
    ----------
    setting, updates, keys
        As for `PheValues`; values are quantized with a threshold of 1.
    """

    kind: Kind = "peer"
    max_repeats = REPEATS

    def __init__(self, setting: Setting, updates: Sequence[Vector], keys: tuple[Any, Any]) -> None:
        public, private = keys
        levels = (1 << (BITS - 1)) - 1
        slots = Slots(levels, setting.cohort, public.n.bit_length() - 1, TAG_BITS)
        batches = slots.batches(setting.values)
        count = min(SAMPLE, batches)
        length = min(count * slots.per, setting.values)
        self.projection = batches / count
        self.name = f"phe-{public.n.bit_length()} batched, projected"
        self.note = (
            f"{_phe_version()} with gmpy2, its raw_encrypt on our batches; projected from {count} "
            f"ciphertexts to {batches:,}, of {slots.per} values; at most {REPEATS} repeats"
        )
        self.upload_bytes: int | None = batches * _ciphertext_bytes(public)
        self._samples = [updates[j][:length] for j in setting.survivors]
        self.mean: Vector = np.empty(0, np.float32)
        wrapped = library().EncryptedNumber

        def encrypt(sample: Vector) -> list[int]:
            quantized = np.rint(sample.astype(np.float64) * levels).astype(np.int32)
            return [public.raw_encrypt(int(m % public.n)) for m in slots.pack(quantized)]

        parts = [[wrapped(public, c) for c in encrypt(sample)] for sample in self._samples]
        total = parts[0]
        for part in parts[1:]:
            total = [a + b for a, b in zip(total, part, strict=True)]
        sums = [c.ciphertext(be_secure=False) for c in total]

        def decrypt() -> None:
            opened = _signed([private.raw_decrypt(c) for c in sums], public.n)
            values = slots.unpack(opened, length, len(parts))
            self.mean = (values / (levels * len(parts))).astype(np.float32)

        self.encrypt: Timed = lambda: encrypt(self._samples[0])
        self.add: Timed = lambda: [a + b for a, b in zip(parts[0], parts[1], strict=True)]
        self.decrypt: Timed = decrypt

    def max_error(self) -> float:
        """Of the sample, against the float64 mean of the survivors' values."""
        return worst(self.mean, self._samples)


def phe_peers(
    setting: Setting, updates: Sequence[NDArray[np.float32]], key_bits: int = KEY_BITS
) -> list[Contender]:
    """Both ways of using phe, under one key of `key_bits` bits."""
    keys = phe_keys(key_bits)
    return [PheValues(setting, updates, keys), PheBatches(setting, updates, keys)]


def phe_keys(key_bits: int) -> tuple[Any, Any]:
    """Phe's public and private key, made by phe."""
    public, private = library().generate_paillier_keypair(n_length=key_bits)
    return public, private


def library() -> Any:
    """Give `phe.paillier`; ConfigError unless it is there and computes with gmpy2."""
    try:
        from phe import paillier, util
    except ImportError:
        raise ConfigError(
            "python-paillier is not installed; the [peers] extra brings it: "
            f"{install_hint('peers')}"
        ) from None
    if not util.HAVE_GMP:
        raise ConfigError(
            "--peers: phe computes without gmpy2, which makes it faster: "
            f"{install_hint('paillier')}"
        )
    return paillier


def _phe_version() -> str:
    from importlib.metadata import version

    return f"python-paillier {version('phe')}"


def _ciphertext_bytes(public: Any) -> int:
    return 2 * ((int(public.n).bit_length() + 7) // 8)


def _signed(opened: Sequence[int], n: int) -> list[Any]:
    from flhe.math.bigint import gmpy

    mpz = gmpy().mpz
    return [mpz(m - n if 2 * m > n else m) for m in opened]
