"""Members as an agreement leaves them, and a round of theirs about masking keys; for tests."""

from __future__ import annotations

import functools
import random as plain_random
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine
from flhe.keys.agreement.circle import CONSIST, UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.masking import Agreed, Dealt
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps
from flhe.wire.secret import Random
from tests.keys import agreement

Q = 2**64 - 2**32 + 1


@functools.cache
def group(size: int, collusion: int = 0) -> tuple[tuple[Identity, ...], tuple[Epoch, ...]]:
    """Identities and epochs by rank, as an agreement would leave them."""
    made = agreement.sites(size)
    roster = agreement.roster_of(made, collusion)

    def key(a: int, b: int) -> bytes:
        return b"" if a == b else bytes([min(a, b), max(a, b)]) * 16

    epochs = tuple(
        Epoch(
            id=bytes(range(16)),
            number=4,
            run_id=2**64 - 3,
            contract=bytes(32),
            roster=roster,
            members=roster.publics,
            rank=rank,
            group_key=bytes(32),
            pair_keys=tuple(key(rank, other) for other in range(size)),
        )
        for rank in range(size)
    )
    return tuple(made), epochs


def slot_for(epoch: Epoch, round_: int = 3) -> Slot:
    return Slot(epoch.run_id, epoch.roster.hash, epoch.id, round_, 1, bytes(32), bytes([7]) * 32)


def seed_of(number: int, elements: int) -> NDArray[np.uint64]:
    """Elements all over the field, the greatest and the least among them."""
    drawn = plain_random.Random(number)  # test data; seeds never come from here
    values = [drawn.randrange(Q) for _ in range(elements)]
    values[0] = (Q - 1, 0, values[0])[number % 3]
    return np.array(values, np.uint64)


@dataclass
class Told:
    """A round in which all have dealt, and some have signed one set of survivors."""

    identities: tuple[Identity, ...]
    epochs: tuple[Epoch, ...]
    circle: SharingParameters
    slot: Slot
    seeds: list[NDArray[np.uint64]]
    dealt: list[Dealt]
    survivors: tuple[int, ...]
    agreed: dict[int, Agreed]
    signatures: dict[int, bytes]

    @property
    def threshold(self) -> int:
        return self.circle.thresholds.threshold

    def inbox(self, rank: int, other: dict[int, bytes] | None = None) -> list[bytes]:
        """The survivors' boxes for a member, some of them exchanged."""
        return [(other or {}).get(u, self.dealt[u].boxes[rank]) for u in self.survivors]

    def agree(
        self, rank: int, survivors: Sequence[int], boxes: Sequence[bytes]
    ) -> tuple[Agreed, bytes]:
        mine = self.epochs[rank], self.identities[rank], self.dealt[rank]
        return masking.agree(*mine, survivors, boxes, self.circle.elements)

    def release(self, rank: int, signers: Sequence[int] | None = None, **how: Any) -> bytes:
        """An honest answer, to the first signatures unless said."""
        signers = sorted(self.signatures)[: self.threshold] if signers is None else signers
        shown = how.pop("signatures", None) or [self.signatures[s] for s in signers]
        mine = self.epochs[rank], self.identities[rank], self.agreed[rank]
        how = {"sealed": False, **how}
        return masking.release(*mine, signers, shown, **how)

    def releases(self, ranks: Iterable[int], **how: Any) -> list[bytes]:
        return [self.release(rank, **how) for rank in ranks]

    def combine(self, answers: Sequence[bytes], epoch: Epoch | None = None) -> list[int]:
        found = combine(self.circle, self.slot, self.survivors, answers, epoch=epoch)
        assert (found.dtype, found.shape) == (np.uint64, (self.circle.elements,))
        return [int(x) for x in found]

    def total(self) -> list[int]:
        """The sum of the survivors' seeds, by Python's integers."""
        columns = zip(*(self.seeds[u].tolist() for u in self.survivors), strict=True)
        return [sum(column) % Q for column in columns]

    def _signed(self, rank: int, stage: str, said: bytes, about: bytes = b"") -> bytes:
        header = self.circle.header(self.slot, stage, rank, about)
        return Envelope.seal(self.identities[rank], header, said).signature

    def statement(self, rank: int, survivors: Sequence[int] = (), stage: str = CONSIST) -> bytes:
        """A signature on a set, whatever the member has signed."""
        return self._signed(rank, stage, self.circle.statement(survivors or self.survivors))

    def answer(self, rank: int, payload: bytes, survivors: Sequence[int] = ()) -> bytes:
        """An answer that the member itself signed, whatever is in it."""
        about = self.circle.about(survivors or self.survivors)
        return dumps([rank, payload, self._signed(rank, UNMASK, payload, about)])


def play(
    size: int,
    collusion: int,
    survivors: Collection[int] | None = None,
    agreeing: Collection[int] | None = None,
    *,
    elements: int = 5,
    round_: int = 3,
    random: Callable[[int], Random] = lambda _: secrets.token_bytes,
) -> Told:
    """Deal and agree, every state by way of its bytes."""
    identities, epochs = group(size, collusion)
    chosen = tuple(sorted(range(size) if survivors is None else survivors))
    slot = slot_for(epochs[0], round_)
    seeds = [seed_of(1000 * size + rank, elements) for rank in range(size)]
    dealt = [
        Dealt.from_bytes(masking.deal(epochs[rank], slot, seeds[rank], random(rank)).to_bytes())
        if rank in chosen
        else Dealt(slot, (b"",) * size, b"")
        for rank in range(size)
    ]
    circle = SharingParameters.of(epochs[0], elements)
    told = Told(identities, epochs, circle, slot, seeds, dealt, chosen, {}, {})
    for rank in chosen if agreeing is None else agreeing:
        agreed, told.signatures[rank] = told.agree(rank, chosen, told.inbox(rank))
        told.agreed[rank] = Agreed.from_bytes(agreed.to_bytes())
    return told


@functools.cache
def six() -> Told:
    """Six members, one of whom may collude: t is 4, and rank 2 has dropped out. Not to be changed."""
    return play(6, 1, (0, 1, 3, 4, 5))
