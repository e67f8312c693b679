"""Compile and load what a round runs, before it is needed.

numba compiles a loop when it is first called, seconds for a round's, and keeps it on disk for all
processes of this installation. A new process loads it from there, after a second in which numba
loads itself. So a round is run once on a vector of zeros, while the node waits or trains: that uses
exactly the loops that the round will use.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.flatten import Entry, Layout
from flhe.errors import logger
from flhe.math import ring
from flhe.math.buffers import fixed
from flhe.math.shamir import Shamir
from flhe.schemes.base import Scheme, Secrets
from flhe.schemes.sealed import Slot
from flhe.schemes.sum_mac import SumMac
from flhe.training.terms import Terms

VALUES = (1 << 15) + 1
"""Values of the vector: whole blocks of every packing, and a rest."""

ALONE = ("group", "masking")
"""Agreements whose keys one member can draw as fast as it draws random numbers."""

_warmed: set[tuple[Scheme, int]] = set()


def warm(terms: Terms, cohort: int, *, if_new: bool = False) -> None:
    """Start `rehearse` on a thread of its own, once in a process; nothing for terms it is not for.

    With `if_new`, only if this installation has not run a round yet. No daemon: a process that ends
    while numba compiles would end by a signal.
    """
    able = terms.scheme.agreement in ALONE and not terms.codec.sparse
    if not able or terms.select.partial or (terms.scheme, terms.bits) in _warmed:
        return
    _warmed.add((terms.scheme, terms.bits))
    threading.Thread(target=_rehearse, args=(terms, cohort, if_new), name="flhe-warm").start()


def _rehearse(terms: Terms, cohort: int, if_new: bool) -> None:
    try:
        if not (if_new and _has_run()):
            rehearse(terms, cohort)
    except Exception as error:  # the round itself will tell, if it fails too
        logger.debug("warming up failed: %s", type(error).__name__)


def _has_run() -> bool:
    """Return whether the last loop of a round was on disk."""
    from flhe.math import kernels

    kernels.dequantize(fixed(np.zeros(1, np.int32)), 1.0, 1, np.zeros(1, np.float32))
    return bool(kernels.dequantize.stats.cache_hits)


def rehearse(terms: Terms, cohort: int) -> None:
    """Encode, encrypt, add, open and decode vectors of zeros, under keys drawn for this alone.

    For dense vectors, and schemes of which one member can draw all keys (ALONE).
    """
    terms = terms.resolved(cohort)
    adder, codec = terms.for_cohort(cohort), terms.codec
    layout = Layout((Entry("zeros", (VALUES,), "float32"),))
    state, extras = codec.init(layout), terms.extras(layout)
    key, slot = secrets.token_bytes(32), Slot(0, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
    tags = SumMac(key, slot, VALUES)
    total, seeds = None, []
    for rank in range(2):
        plain = Plain(np.zeros(VALUES, np.float32), extras.encode(1, {}, []))
        encoded, _ = codec.encode(plain, state)
        if terms.tagged:
            encoded = tags.tagged(encoded, rank, terms.bits)
        sealer = adder.sealer(Secrets(key, rank))
        mode = terms.scheme.mode_ahead
        sealer.prepare(slot, encoded.values.size + encoded.extras.size, mode)
        total = adder.add(total, sealer.encrypt(encoded, slot, mode=mode))
        if terms.scheme.per_sum_keys:
            seeds.append(sealer.take_seed(slot))
    assert total is not None
    opener = adder.opener(Secrets(key, 0), _summed(seeds) if seeds else None)
    lanes = opener.decrypt(adder.close(total))
    opened = Plain(lanes[:VALUES], lanes[VALUES:])
    if terms.tagged:
        opened, _ = tags.matching(opened, total.senders, terms.bits)
    codec.decode(opened, total.senders, state)


def _summed(seeds: Sequence[ring.Elements]) -> ring.Elements:
    """Return the sum of keys, as members open it: by one share more than it takes."""
    total = functools.reduce(ring.add, seeds)
    sharing = Shamir(members=3, threshold=2, privacy=1)
    return sharing.combine(range(3), sharing.share(total), total.size)
