"""FLASHE with top-k sparsification, as `flhe bench --top-k` times it.

`encrypt` is everything between a float32 update and what is uploaded: error feedback, selection,
permutation, quantization, coding of the support, encryption. `decrypt` ends with a dense float32 mean.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Extras
from flhe.coding.support import Support
from flhe.errors import FlheError
from flhe.math.permutation import Permutation
from flhe.schemes.flashe import masking
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.flashe.sparse import covered
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumTags
from flhe.training.terms import Terms
from flhe_lab.bench.contender import EXAMPLES, SLOT, Contender, Setting, Vector
from flhe_lab.bench.schemes import Way, contender, layout_of, verified

PATTERNS = 16
"""Most clients among whom the masks are counted one by one, too: 2**16 sets of senders."""


def sparse(setting: Setting, updates: Sequence[Vector], top_k: float) -> Contender:
    """FLASHE of the largest values of each client, so large a share."""
    ranks, values, threads = setting.survivors, setting.values, setting.threads
    terms = Terms(max_examples=EXAMPLES, metrics=(), top_k=top_k, warmup=0, masking="adaptive")
    layout = layout_of(values)
    scheme = Flashe(setting.cohort, terms.bits, terms.masking)
    key, order = secrets.token_bytes(32), secrets.token_bytes(32)
    tags = SumTags(key, SLOT, values, threads)
    extras, residual = Extras().encode(EXAMPLES, {}, []), np.zeros(values, np.float32)

    def selected(rank: int) -> tuple[Plain, Plain, Support]:
        codec = terms.codec(Permutation(order, values))
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
    lanes = terms.trailer_lanes(layout)
    choice = masking.for_supports(bitmaps, lanes, setting.cohort)
    check_count(scheme, choice, bitmaps, lanes, values)

    def seal(rank: int) -> Sealed:
        _, encoded, support = selected(rank)
        sealer = FlasheSealer(scheme, key, rank, threads=threads)
        tagged = tags.tagged(encoded, rank, scheme.bits, support.digest())
        return sealer.encrypt(tagged, SLOT, mode=choice.masking, support=support)

    def opened(total: Sealed) -> Vector:
        sums = FlasheOpener(scheme, key, threads=threads).decrypt(total)
        coords = covered(total.supports)
        codec = terms.codec(Permutation(order, values))
        plain = verified(tags, sums, total, scheme.bits, coords)
        mean, _ = codec.decode(plain, total.senders, codec.init(layout), reuse=True)
        return mean.values

    return contender(
        f"flashe top {100 * top_k:g}%",
        Way(scheme, seal, opened),
        ranks,
        updates,
        note=f"{choice.masking} masking (adaptive): {choice.single:,} masks of all clients, double "
        f"{choice.double:,}",
        error=lambda mean: float(np.abs(mean - exact / len(ranks)).max()),
    )


def check_count(
    scheme: Flashe,
    choice: masking.Choice,
    bitmaps: Sequence[masking.Bitmap],
    lanes: int,
    values: int,
) -> None:
    """Count masks again, set of senders by set of senders, from what opening takes by definition.

    Raises
    ------
    FlheError
        A masking takes another number of masks than `choice` says.
    """
    if len(bitmaps) > PATTERNS:
        return
    patterns: NDArray[np.int64] = np.zeros(values, np.int64)
    for i, (_, words) in enumerate(bitmaps):
        bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=patterns.size)
        patterns |= bits.astype(np.int64) << i
    found, times = np.unique(patterns, return_counts=True)
    cases = [*zip(found.tolist(), times.tolist(), strict=True), ((1 << len(bitmaps)) - 1, lanes)]
    for mode, counted in (("single", choice.single), ("double", choice.double)):
        sealing = opening = 0
        for pattern, often in cases:
            senders = [j for i, (j, _) in enumerate(bitmaps) if pattern >> i & 1]
            plus, minus = scheme.mask_terms(senders, mode)
            opening += often * (len(plus) + len(minus))
            sealing += often * len(senders) * (1 if mode == "single" else 2)
        if sealing + scheme.cohort * opening != counted:
            raise FlheError(f"{mode} masking does not take {counted} masks")
