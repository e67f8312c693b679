"""Contenders of FLASHE's tables alone: lattices with a value a ciphertext, and a tenth in clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flhe.coding.support import Support
from flhe.schemes.fedml_he.seal_blocks import tenseal
from flhe.schemes.flashe.sparse import covered
from flhe_lab.bench import Contender, Setting, Vector, worst
from flhe_lab.bench.peers import LEVELS, plain_modulus

SAMPLE = 16
"""Ciphertexts that are measured."""

SHARE = 0.1
"""Of the values of an update, in a sparse one."""


def tenseal_values(setting: Setting, updates: Sequence[Vector], *, bfv: bool) -> Contender:
    """One value a ciphertext by TenSEAL: sampled, since an update takes gigabytes; bytes too.

    Parameters
    ----------
    setting, updates
        As for every contender.
    bfv : bool
        BFV, n = 4096, the shortest ring that TenSEAL takes with sums of 16-bit integers; else CKKS as
        in FLASHE, Sec. 5.4: n = 8192, SEAL's own moduli, scale 2^40.
    """
    ts = tenseal()
    count = min(SAMPLE, setting.values)
    picked = np.linspace(0, setting.values - 1, count).astype(np.intp)
    projection, clients = setting.values / count, len(setting.survivors)
    own, levels = updates[0][picked], LEVELS if bfv else 1
    numbers = {"plain_modulus": plain_modulus(2 * setting.cohort * levels, 2 * 4096)} if bfv else {}
    context = ts.context(
        ts.SCHEME_TYPE.BFV if bfv else ts.SCHEME_TYPE.CKKS,
        poly_modulus_degree=4096 if bfv else 8192,
        coeff_mod_bit_sizes=[],  # SEAL's own
        n_threads=setting.threads,
        **numbers,
    )
    if not bfv:
        context.global_scale = 2**40
    vector: Any = ts.bfv_vector if bfv else ts.ckks_vector

    def encrypt() -> list[Any]:
        scaled = own.astype(np.float64) * levels
        taken = np.rint(scaled).astype(np.int64).tolist() if bfv else scaled.tolist()
        return [vector(context, [x]) for x in taken]

    part = total = encrypt()
    for _ in range(clients - 1):  # every client uploads client 0's
        total = [a + b for a, b in zip(total, part, strict=True)]
    running = [a + b for a, b in zip(part, part, strict=True)]
    mean = np.empty(0, np.float32)

    def decrypt() -> None:
        nonlocal mean
        sums = np.array([c.decrypt()[0] for c in total], np.float64)
        mean = (sums / (levels * clients)).astype(np.float32)

    return Contender(
        f"tenseal-{'bfv-4096' if bfv else 'ckks-8192'} a value",
        {
            "encrypt": encrypt,
            "add": lambda: [a.add_(b) for a, b in zip(running, part, strict=True)],
            "decrypt": decrypt,
        },
        "peer",
        f"TenSEAL {ts.__version__}, projected from {count} ciphertexts, one a value",
        upload_bytes=round(sum(len(c.serialize()) for c in part) * projection),
        error=lambda: worst(mean, [own]),  # client 0's values are the mean here
        max_repeats=5,
        projection=projection,
    )


@dataclass(frozen=True, slots=True)
class Tenth:
    """What a sparse update and the sum of several hold.

    Parameters
    ----------
    sent, union : int
        Values of one upload; coordinates that somebody sent.
    support_bytes, sum_support_bytes : int
        Bytes that say which they are.
    """

    sent: int
    union: int
    support_bytes: int
    sum_support_bytes: int


def plain_tenth(setting: Setting, updates: Sequence[Vector]) -> tuple[Contender, Tenth]:
    """The largest tenth of each update in clear: float32 values, and which they are."""

    def selected(update: Vector) -> tuple[Support, Vector]:
        count = max(round(SHARE * setting.values), 1)
        largest = np.argpartition(np.abs(update), setting.values - count)[-count:]
        coords = np.sort(largest).astype(np.uint32)
        return Support.of(coords, setting.values), update[coords]

    sent = [selected(updates[j]) for j in setting.survivors]
    total, exact = np.zeros(setting.values, np.float32), np.zeros(setting.values, np.float64)
    for support, values in sent:
        total[support.coords] += values
        exact[support.coords] += values
    union = Support.of(covered([support for support, _ in sent]), setting.values)
    seen = Tenth(sent[0][1].size, union.count, len(sent[0][0].data), len(union.data))
    running, (other, more) = np.zeros_like(total), sent[1]
    summed, mean = total[union.coords], np.empty(0, np.float32)

    def add() -> None:
        coords = Support.from_bytes(other.data, setting.values).coords
        running[coords] += more

    def decrypt() -> None:
        nonlocal mean
        mean = np.zeros(setting.values, np.float32)
        coords = Support.from_bytes(union.data, setting.values).coords
        mean[coords] = summed / np.float32(len(sent))

    made = Contender(
        "plain top 10%",
        {"encrypt": lambda: selected(updates[0]), "add": add, "decrypt": decrypt},
        note="values in float32, and a coded support",
        upload_bytes=4 * seen.sent + seen.support_bytes,
        sum_bytes=4 * seen.union + seen.sum_support_bytes,
        error=lambda: float(np.abs(mean - exact / len(sent)).max()),
    )
    return made, seen
