"""A federation of one scheme as a contender: from float32 update to upload, from sum to float32 mean.

Nothing is computed ahead of time. Making keys is not timed, since it happens once an epoch. A fresh
sealer each time is what lets one process encrypt repeatedly in one slot; it protects nothing but random
numbers. `add` is what the server does for one upload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import FlheError
from flhe.schemes.base import Adder, Scheme, Sealer
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac
from flhe.training.terms import Terms
from flhe_lab.bench.contender import EXAMPLES, SLOT, Contender, Setting, Vector, averaging


def layout_of(values: int) -> Layout:
    """A model of one array."""
    return Layout((Entry("update", (values,), "float32"),))


def terms_of(scheme: Scheme, *, select: float | Select | None = None, **coding: Any) -> Terms:
    """Terms of what is timed: thresholds of 1, no metrics; `coding` as `update_codec` takes it."""
    known = {"bits": scheme.default_bits, "clip": 1.0, "max_examples": EXAMPLES}
    codec = update_codec(**{**known, **coding})
    return Terms(scheme, codec, select=Select.of(select), metrics=())


def nbytes(sealed: Sealed) -> int:
    """Bytes that travel."""
    return sum(map(len, (*sealed.body(), sealed.header())))


def verified(
    tags: SumMac,
    lanes: NDArray[Any],
    total: Sealed,
    bits: int,
    coords: NDArray[np.uint32] | None = None,
) -> Plain:
    """What an opened sum holds, once its tags are seen to fit; `coords` of a sparse one."""
    values = tags.floats if coords is None else coords.size
    whole = Plain(lanes[:values], lanes[values:], coords)
    bounds = [support.digest() for support in total.supports]
    plain, fits = tags.matching(whole, total.senders, bits, bounds)
    if not all(fits):
        raise FlheError(f"{total.scheme}: the tags of a sum do not fit")
    return plain


def uploads(
    name: str,
    adder: Adder,
    seal: Callable[[int], Sealed],
    opened: Callable[[Sealed], Vector],
    exact: Sequence[NDArray[Any]],
    *,
    ranks: Sequence[int],
    **known: Any,
) -> Contender:
    """A contender of `ranks`, who upload; `known` as in `Contender`.

    `seal` makes a rank's upload, `opened` the float32 mean of a closed sum; `exact` is what that is of.
    """
    parts = [seal(rank) for rank in ranks]
    total: Sealed | None = None
    for part in parts:
        total = adder.add(total, part)
    assert total is not None
    closed = adder.close(total)
    # `add` is timed on a running sum of its own: what it holds does not matter, its size does.
    running = adder.add(None, replace(parts[0], senders=(0,)))
    more = replace(parts[1], senders=(1,))
    known = {"upload_bytes": nbytes(parts[0]), "sum_bytes": nbytes(closed), **known}
    return averaging(
        name,
        lambda: seal(ranks[0]),
        lambda: adder.add(replace(running), more),
        lambda: opened(closed),
        exact,
        **known,
    )


@dataclass(frozen=True, slots=True)
class Federation:
    """How the members of one federation seal and open."""

    terms: Terms  # Say how all of them encode; resolved for the cohort
    adder: Adder  # Adds
    sealer: Callable[[int], Sealer]  # Rank -> what encrypts one update of it
    opened: Callable[[Sealed], NDArray[Any]]  # Closed sum -> lanes
    key: bytes = b""  # Of the tags of a sum; none where its sealers make none

    def encoder(self, setting: Setting, updates: Sequence[Vector]) -> Callable[[int], Plain]:
        """Rank -> what its sealer is given."""
        codec, tags = self.terms.codec, self._tags(setting)
        state = codec.init(layout_of(setting.values))
        extras = Extras().encode(EXAMPLES if codec.weighted else 1, {}, [])

        def encoded(rank: int) -> Plain:
            plain, _ = codec.encode(Plain(updates[rank], extras), state)
            return plain if tags is None else tags.tagged(plain, rank, self.terms.bits)

        return encoded

    def decoder(self, setting: Setting) -> Callable[[Sealed], Vector]:
        """Closed sum -> what a reader makes of it."""
        codec, tags = self.terms.codec, self._tags(setting)
        state = codec.init(layout_of(setting.values))

        def mean(total: Sealed) -> Vector:
            lanes = self.opened(total)
            if tags is None:
                plain = Plain(lanes[: setting.values], lanes[setting.values :])
            else:
                plain = verified(tags, lanes, total, self.terms.bits)
            opened, _ = codec.decode(plain, total.senders, state)
            return opened.values

        return mean

    def contender(
        self, name: str, setting: Setting, updates: Sequence[Vector], **known: Any
    ) -> Contender:
        """It, at work on `updates`, one a rank; `known` as in `Contender`."""
        encoded, ranks = self.encoder(setting, updates), setting.survivors
        return uploads(
            name,
            self.adder,
            lambda rank: self.sealer(rank).encrypt(encoded(rank), SLOT),
            self.decoder(setting),
            [updates[rank] for rank in ranks],
            ranks=ranks,
            **known,
        )

    def _tags(self, setting: Setting) -> SumMac | None:
        return SumMac(self.key, SLOT, setting.values, setting.threads) if self.key else None
