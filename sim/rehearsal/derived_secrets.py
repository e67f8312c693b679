"""Keys that a node derives from what its state directory holds, as far as one can tell from outside.

Whoever has one of them reads or forges a part of a round, so none may travel. Their contexts are
public: slots are in ciphertexts' headers on the wire, message headers in messages, ranks are counted.
Not looked for: keys of boxes whose salt stands inside the box (sealed models), and what is bound to
the support of a sparse vector.

Labels are those of the modules that derive; a test holds them against the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from flhe.errors import FlheError
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.states import Epoch
from flhe.keys.seal import ModelKey
from flhe.schemes.base import Adder
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.flashe.adder import MODES, FlasheAdder
from flhe.schemes.sealed import MAX_HEADER, Slot
from flhe.wire import canonical
from flhe.wire.derive import hkdf

DERIVED = "derived key"
_SLOT = ("sum-tag", "permutation")
"""Labels of keys that have a slot for their context and nothing else."""
_MESSAGE = 1 << 20


@dataclass(slots=True)
class Contexts:
    """What is public in the traffic, and keys are bound to."""

    slots: set[Slot] = field(default_factory=set)  # Of all ciphertexts
    lengths: set[int] = field(default_factory=set)  # Integers in them
    headers: set[bytes] = field(default_factory=set)  # Of all signed messages, encoded

    def take(self, values: Iterable[object]) -> None:
        """Look through values of records."""
        for value in values:
            if isinstance(value, list):
                self.take(value)
            elif isinstance(value, bytes):
                self._take(value)

    def _take(self, value: bytes) -> None:
        try:
            said = canonical.loads(value, _MESSAGE, "message")
        except FlheError:
            return
        match said:
            case [int(), str(), str(), list(context), list(), int(length), list()] if (
                len(value) <= MAX_HEADER
            ):
                self.lengths.add(length)
                with suppress(FlheError):
                    self.slots.add(Slot.from_fields(context))
            case {"header": dict(), "payload": bytes(), "signature": bytes()}:
                with suppress(FlheError):
                    self.headers.add(Envelope.from_bytes(value, _MESSAGE).header.to_bytes())


def of_epoch(epoch: Epoch) -> Iterator[bytes]:
    """Keys that serve all of an epoch."""
    scope = epoch.run_id, epoch.roster.hash
    yield hkdf(epoch.group_key, "digest", *scope, epoch.id)
    yield hkdf(epoch.group_key, "joint-sum", *scope, epoch.id)
    yield hkdf(epoch.group_key, "confirm", *scope, epoch.number)
    for key in filter(None, epoch.pair_keys):
        yield hkdf(key, "joint", *scope, epoch.id)
    yield ModelKey.of(epoch).key


def of_traffic(
    group_keys: Collection[bytes],
    pair_keys: Collection[bytes],
    contexts: Contexts,
    adders: Iterable[Adder],
    cohort: int,
) -> Iterator[bytes]:
    """Keys that serve one slot or one message.

    Keys are all that were collected: which belongs to what is not asked. `adders` are those of the
    runs, for each size of the group; `cohort` is the most members.
    """
    ways = list(adders)
    for key, slot in itertools.product(group_keys, contexts.slots):
        context = slot.context()
        for label in _SLOT:
            yield hkdf(key, label, *context)
        for rank in range(cohort):
            yield hkdf(key, "sum-tag-mask", *context, rank, b"")
            yield hkdf(key, "unmask", slot.digest(), rank)
        for adder in ways:
            yield from _of_adder(adder, key, slot)
    ranks = list(itertools.permutations(range(cohort), 2))
    for key in pair_keys:
        for slot, (sender, receiver) in itertools.product(contexts.slots, ranks):
            yield hkdf(key, "kshare", slot.digest(), sender, receiver)
    for key, header in itertools.product((*group_keys, *pair_keys), contexts.headers):
        yield hkdf(key, "pair-aead", header)


def _of_adder(adder: Adder, group_key: bytes, slot: Slot) -> Iterator[bytes]:
    context = slot.context()
    if isinstance(adder, FlasheAdder):
        for mode in MODES:
            yield hkdf(group_key, "flashe", *context, mode, adder.lane_bits)
    elif isinstance(adder, FedmlHeAdder):
        sizes = adder.sizes
        for j in range(adder.cohort + 1):
            yield hkdf(group_key, "ckks-a", *context, j, sizes.n, sizes.q)
    elif isinstance(adder, EsaflAdder):
        for limb in range(len(adder.sizes.slots.moduli)):
            yield hkdf(group_key, "eshe-a", *context, adder.scheme.ring, limb)
