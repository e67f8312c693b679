"""What a user of Paillier would pick instead: python-paillier (phe), a value or a batch a ciphertext.

A whole update would take it hours, so a sample of ciphertexts is measured, and projected: seconds of
the sample times how many more ciphertexts an update has. That is exact but for how the machine's speed
varies, since every ciphertext costs the same; rows and notes say "projected" all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from flhe.coding.slots import Slots
from flhe.errors import ConfigError
from flhe.packages import install_hint, require
from flhe_lab.bench.contender import Contender, Setting, Vector, averaging

KEY_BITS = 3072
SAMPLE = 16
"""Ciphertexts that are measured."""

REPEATS = 3
EXPONENT_BYTES = 4
"""Of the exponent that travels with a value's ciphertext; phe's own JSON takes twice the bytes."""

BITS = 16
"""Bits of a value in a batch, sign included."""

Keys = tuple[Any, Any]
"""phe's public and private key."""


def sampled(
    name: str,
    samples: Sequence[Vector],
    encrypt: Callable[[Vector], list[Any]],
    opened: Callable[[Sequence[Any]], Vector],
    **known: Any,
) -> Contender:
    """A contender whose ciphertexts are added one by one; `known` as in `Contender`."""

    def added(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        return [a + b for a, b in zip(one, other, strict=True)]

    parts = [encrypt(sample) for sample in samples]
    total = functools.reduce(added, parts)
    return averaging(
        name,
        lambda: encrypt(samples[0]),
        lambda: added(parts[0], parts[1]),
        lambda: opened(total),
        samples,
        max_repeats=REPEATS,
        **known,
    )


def phe_values(setting: Setting, updates: Sequence[Vector], keys: Keys) -> Contender:
    """One float a ciphertext, `EncryptedNumber`s: how phe is used, and how FATE used it.

    Floats encode exactly, with an exponent each; adding values of other exponents aligns them first.

    Source: Zhang et al., "BatchCrypt", Sec. 5.
    """
    public, private = keys
    count = min(SAMPLE, setting.values)
    picked = np.linspace(0, setting.values - 1, count).astype(np.intp)
    samples = [updates[j][picked] for j in setting.survivors]

    def mean(total: Sequence[Any]) -> Vector:
        sums = [private.decrypt(c) for c in total]
        return np.array(sums, np.float64).astype(np.float32) / np.float32(len(samples))

    return sampled(
        f"phe-{public.n.bit_length()} a value, projected",
        samples,
        lambda sample: [public.encrypt(float(x)) for x in sample],
        mean,
        upload_bytes=setting.values * (_ciphertext_bytes(public) + EXPONENT_BYTES),
        projection=setting.values / count,
        **_about(f"projected from {count} ciphertexts to {setting.values:,}, one a value"),
    )


def phe_batches(setting: Setting, updates: Sequence[Vector], keys: Keys) -> Contender:
    """The batches that ours encrypts, by phe's `raw_encrypt`: the same plaintexts, another library.

    Values are quantized with a threshold of 1.
    """
    public, private = keys
    levels = (1 << (BITS - 1)) - 1
    slots = Slots(levels, setting.cohort, public.n.bit_length() - 1)
    batches = slots.batches(setting.values)
    count = min(SAMPLE, batches)
    length = min(count * slots.per, setting.values)
    samples = [updates[j][:length] for j in setting.survivors]
    wrapped = library().EncryptedNumber

    def encrypt(sample: Vector) -> list[Any]:
        quantized = np.rint(sample.astype(np.float64) * levels).astype(np.int32)
        raw = (public.raw_encrypt(int(m % public.n)) for m in slots.pack(quantized))
        return [wrapped(public, c) for c in raw]

    def mean(total: Sequence[Any]) -> Vector:
        sums = [private.raw_decrypt(c.ciphertext(be_secure=False)) for c in total]
        values = slots.digits(_signed(sums, public.n), length, len(samples))
        return (values / (levels * len(samples))).astype(np.float32)

    return sampled(
        f"phe-{public.n.bit_length()} batched, projected",
        samples,
        encrypt,
        mean,
        upload_bytes=batches * _ciphertext_bytes(public),
        projection=batches / count,
        **_about(
            f"its raw_encrypt on our batches; projected from {count} ciphertexts to {batches:,}, of "
            f"{slots.per} values"
        ),
    )


def _about(how: str) -> dict[str, Any]:
    note = f"python-paillier {version('phe')} with gmpy2; {how}; at most {REPEATS} repeats"
    return {"kind": "peer", "note": note}


def phe_keys(key_bits: int = KEY_BITS) -> Keys:
    """Phe's public and private key, made by phe."""
    public, private = library().generate_paillier_keypair(n_length=key_bits)
    return public, private


def library() -> Any:
    """Give `phe.paillier`; ConfigError unless it is there and computes with gmpy2."""
    require("python-paillier, to be compared with,", "peers", ("phe",))
    from phe import paillier, util

    if not util.HAVE_GMP:
        raise ConfigError(
            "--peers: phe computes without gmpy2, which makes it faster: "
            f"{install_hint('paillier')}"
        )
    return paillier


def _ciphertext_bytes(public: Any) -> int:
    return 2 * ((int(public.n).bit_length() + 7) // 8)


def _signed(opened: Sequence[int], n: int) -> list[Any]:
    from flhe.math.bigint import gmpy

    mpz = gmpy().mpz
    return [mpz(m - n if 2 * m > n else m) for m in opened]
