"""What a user would pick instead, on the same vector: TenSEAL's CKKS and BFV, python-paillier.

All clients upload client 0's ciphertexts under TenSEAL: encrypting ten updates would take minutes and
show nothing more, since adding costs the same whatever is inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.packages import install_hint
from flhe_lab.bench.contender import Contender, Setting, Vector, worst

SLOTS = 4096
"""Values in one ciphertext of CKKS's ring dimension 8192."""

MODULI = ((60, 40, 40), (60, 60))
"""CKKS's, in bits, the key's last."""

SCALE = 40
"""Bits of CKKS's scale, as FLASHE and TenSEAL's examples have it."""

SHORT_SCALE = 33
"""Bits of the shortest CKKS's scale: errors of a sum stay below a step of 16 bits."""

BFV_SLOTS = 4096
"""Values in one BFV ciphertext, and its ring dimension."""

BFV_MODULI = (36, 36, 37)
"""SEAL's own for this dimension."""

BFV_NOISE_BITS = 14
"""Room for the noise of one ciphertext of this dimension."""

BITS = 16
"""Bits of a value under BFV, sign included."""

LEVELS = (1 << (BITS - 1)) - 1
REPEATS = 5


def ckks(
    setting: Setting, updates: Sequence[Vector], moduli: tuple[int, ...] = (), scale: int = SCALE
) -> Contender:
    """CKKS, ring dimension 8192, 4096 values a ciphertext.

    Without `moduli` it takes SEAL's own for the dimension, 218 bits, as FLASHE's peer does (Sec. 5.4).
    The scale is 2**`scale`; 2**40 is theirs too.
    """
    ts = tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=2 * SLOTS,
        coeff_mod_bit_sizes=list(moduli),  # none: SEAL's own
        n_threads=setting.threads,
    )
    context.global_scale = 2**scale
    name = f"tenseal-ckks-8192-{'-'.join(map(str, moduli)) or 'default'}"
    if scale != SCALE:
        name += f", scale 2^{scale}"
    count = len(setting.survivors)

    def mean(opened: Sequence[Any]) -> Vector:
        values = np.concatenate([np.array(each, np.float64) for each in opened])
        return (values / count).astype(np.float32)

    def values() -> Vector:
        return updates[0]

    return _batched(setting, updates[0], name, ts.ckks_vector, context, SLOTS, values, mean)


def shortest_moduli(cohort: int) -> tuple[int, int]:
    """Bits of the shortest CKKS's two moduli; the second is the key's, as long as SEAL takes it."""
    return SHORT_SCALE + cohort.bit_length() + 1, 60


def shortest_ckks(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """CKKS without a level to spare: the data's modulus holds a sum of values below 1, and its sign."""
    return ckks(setting, updates, shortest_moduli(setting.cohort), SHORT_SCALE)


def bfv(
    setting: Setting,
    updates: Sequence[Vector],
    moduli: tuple[int, ...] | None = (),
    dimension: int = BFV_SLOTS,
    modulus: int = 0,
) -> Contender:
    """BFV: as many integers of 16 bits a ciphertext as its ring dimension is.

    Parameters
    ----------
    setting, updates
        As for every contender.
    moduli : tuple of int, optional
        Bits of the coefficient moduli, the key's last; by default the shortest pair that leaves room
        for a sum and its noise; None for SEAL's own.
    dimension, modulus : int, optional
        Of the ring; of plaintexts, 0 for the smallest prime that gives batching and holds the sum of
        all clients' largest values.

    Raises
    ------
    ConfigError
        A plain modulus that sums exceed.
    """
    ts = tenseal()
    most = 2 * setting.cohort * LEVELS
    modulus = modulus or plain_modulus(most, 2 * dimension)
    if modulus <= most:
        raise ConfigError(f"plain modulus {modulus}: sums of --cohort {setting.cohort} exceed it")
    if moduli == ():
        # The noise of a sum of one and the same ciphertext grows with the cohort.
        moduli = (modulus.bit_length() + setting.cohort.bit_length() + BFV_NOISE_BITS,) * 2
    context = ts.context(
        ts.SCHEME_TYPE.BFV,
        poly_modulus_degree=dimension,
        plain_modulus=modulus,
        coeff_mod_bit_sizes=list(moduli or ()),  # none: SEAL's own
        n_threads=setting.threads,
    )
    name = f"tenseal-bfv-{dimension}-{'-'.join(map(str, moduli or ('default',)))}"
    count = len(setting.survivors)

    def quantized() -> NDArray[np.int64]:
        scaled = np.clip(updates[0].astype(np.float64), -1, 1) * LEVELS
        return np.rint(scaled).astype(np.int64)

    def mean(opened: Sequence[Any]) -> Vector:
        sums = np.concatenate([np.array(each, np.int64) for each in opened])
        return (sums / (LEVELS * count)).astype(np.float32)

    about = f"{BITS} bits a value, plain modulus {modulus}, "
    vector = ts.bfv_vector
    return _batched(
        setting, updates[0], name, vector, context, dimension, quantized, mean, about=about
    )


def paper_bfv(setting: Setting, updates: Sequence[Vector]) -> Contender:
    """FLASHE's peer (Sec. 5.4): n = 8192, SEAL's own moduli, 218 bits, and its plain modulus."""
    return bfv(setting, updates, None, 8192, 1_964_769_281)


def _batched(
    setting: Setting,
    update: Vector,
    name: str,
    vector: Any,
    context: Any,
    slots: int,
    encode: Callable[[], NDArray[Any]],
    decode: Callable[[Sequence[Any]], Vector],
    *,
    about: str = "",
) -> Contender:
    """`slots` values a ciphertext, of what `encode` makes of the update; `decode` takes opened sums."""

    def encrypt() -> list[Any]:
        x = encode()
        return [vector(context, x[at : at + slots]) for at in range(0, x.size, slots)]

    part = encrypt()

    def copies() -> list[Any]:
        # By way of bytes: TenSEAL's own `copy` takes a hundred times as long.
        return [type(each).load(context, each.serialize()) for each in part]

    def add(totals: list[Any]) -> None:
        for total, each in zip(totals, part, strict=True):
            total.add_(each)

    total, running, mean = copies(), copies(), np.empty(0, np.float32)
    for _ in range(len(setting.survivors) - 1):
        add(total)

    def decrypt() -> None:
        nonlocal mean
        mean = decode([each.decrypt() for each in total])

    return Contender(
        name,
        {"encrypt": encrypt, "add": lambda: add(running), "decrypt": decrypt},
        "peer",
        f"TenSEAL {tenseal().__version__}, {about}{len(part)} ciphertexts, every client uploads "
        f"client 0's; at most {REPEATS} repeats",
        upload_bytes=sum(len(each.serialize()) for each in part),
        error=lambda: worst(mean, [update]),  # the mean here
        max_repeats=REPEATS,
    )


def plain_modulus(above: int, step: int) -> int:
    """Smallest prime above `above` that is 1 modulo `step`: BFV batches under such a modulus."""
    candidate = above // step * step + 1
    while True:
        candidate += step
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            return candidate


def peers(setting: Setting, updates: Sequence[Vector]) -> list[Contender]:
    """All peers of this version."""
    from flhe_lab.bench.phe import phe_peers

    return [
        *(ckks(setting, updates, moduli) for moduli in MODULI),
        bfv(setting, updates, BFV_MODULI),
        bfv(setting, updates),
        *phe_peers(setting, updates),
    ]


def tenseal() -> Any:
    """Give the module; ConfigError where it is not installed."""
    try:
        import tenseal
    except ImportError:
        raise ConfigError(
            f"TenSEAL is not installed; the [peers] extra brings it: {install_hint('peers')}"
        ) from None
    return tenseal
