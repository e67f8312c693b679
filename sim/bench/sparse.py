"""A tenth of each update, or another share: FLASHE with top-k sparsification, and the same in clear.

`encrypt` is everything between a float32 update and what is uploaded: error feedback, selection,
permutation, quantization, coding of the support, encryption. `decrypt` ends with a dense float32 mean.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flhe.coding.base import Plain, State
from flhe.coding.extras import Extras
from flhe.coding.support import Support, covered
from flhe.math.permutation import Permutation
from flhe.schemes.flashe import masking
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac
from flhe_lab.bench.contender import EXAMPLES, SLOT, Contender, Setting, Vector, averaging
from flhe_lab.bench.federation import layout_of, terms_of, uploads, verified


def sparse(setting: Setting, updates: Sequence[Vector], top_k: float) -> Contender:
    """FLASHE of the largest values of each client, so large a share."""
    ranks, values, threads = setting.survivors, setting.values, setting.threads
    scheme, layout = Flashe("adaptive"), layout_of(values)
    terms, adder = terms_of(scheme, top_k=top_k, warmup=0), scheme.adder(setting.cohort)
    key, order = secrets.token_bytes(32), secrets.token_bytes(32)
    tags = SumMac(key, SLOT, values, threads)
    extras, residual = Extras().encode(EXAMPLES, {}, []), np.zeros(values, np.float32)

    def selected(rank: int) -> tuple[Plain, Plain, Support]:
        codec = terms.codec.keyed(Permutation(order, values))
        fresh = codec.init(layout)
        state = State(fresh.shared, (residual, *fresh.local[1:]))
        chosen, _ = codec.select(Plain(updates[rank], extras), state)
        encoded, _ = codec.finish(chosen, state)
        assert encoded.coords is not None
        return chosen, encoded, Support.of(encoded.coords, values)

    exact, bitmaps = np.zeros(values, np.float64), []
    for rank in ranks:
        chosen, _, support = selected(rank)
        exact[chosen.coords] += chosen.values
        bitmaps.append((rank, support.bitmap()))
    mode, single, double = masking.for_supports(
        bitmaps, terms.trailer_lanes(layout), setting.cohort
    )

    def seal(rank: int) -> Sealed:
        _, encoded, support = selected(rank)
        sealer = FlasheSealer(adder, key, rank, threads=threads)
        tagged = tags.tagged(encoded, rank, adder.bits, support.digest())
        return sealer.encrypt(tagged, SLOT, mode=mode, support=support)

    def opened(total: Sealed) -> Vector:
        total = replace(total)  # without the union, which it finds once
        sums = FlasheOpener(adder, key, threads=threads).decrypt(total)
        coords = total.coords
        codec = terms.codec.keyed(Permutation(order, values))
        plain = verified(tags, sums, total, adder.bits, coords)
        mean, _ = codec.decode(plain, total.senders, codec.init(layout), reuse=True)
        return mean.values

    return uploads(
        f"flashe top {100 * top_k:g}%",
        adder,
        seal,
        opened,
        [(exact / len(ranks)).astype(np.float32)],
        ranks=ranks,
        note=f"{mode} masking (adaptive): {single:,} masks of all clients, double {double:,}",
    )


def plain_sparse(
    setting: Setting, updates: Sequence[Vector], share: float
) -> tuple[Contender, Support, Support]:
    """The largest values of each update in clear: float32, and which they are.

    With it, what the first client sends, and what anybody does.
    """

    def selected(update: Vector) -> tuple[Support, Vector]:
        count = max(round(share * setting.values), 1)
        largest = np.argpartition(np.abs(update), setting.values - count)[-count:]
        coords = np.sort(largest).astype(np.uint32)
        return Support.of(coords, setting.values), update[coords]

    sent = [selected(updates[j]) for j in setting.survivors]
    total, exact = np.zeros(setting.values, np.float32), np.zeros(setting.values, np.float64)
    for support, values in sent:
        total[support.coords] += values
        exact[support.coords] += values
    union = Support.of(covered([support for support, _ in sent]), setting.values)
    (first, mine), (other, more) = sent[:2]
    running, summed = np.zeros_like(total), total[union.coords]

    def add() -> None:
        coords = Support.from_bytes(other.data, setting.values).coords
        running[coords] += more

    def decrypt() -> Vector:
        mean = np.zeros(setting.values, np.float32)
        coords = Support.from_bytes(union.data, setting.values).coords
        mean[coords] = summed / np.float32(len(sent))
        return mean

    made = averaging(
        f"plain top {100 * share:g}%",
        lambda: selected(updates[0]),
        add,
        decrypt,
        [exact / len(sent)],
        note="values in float32, and a coded support",
        upload_bytes=4 * mine.size + len(first.data),
        sum_bytes=4 * union.count + len(union.data),
    )
    return made, first, union
