"""SASH in `secure_sums`: a client with all it does but quantizing, a server that opens sums.

The other members' shares, signatures and answers are what they would have sent, made without their own
steps; their ciphertexts are real.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import FlheError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import answer_of, combine
from flhe.keys.agreement.circle import CONSIST, UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import pack_elements, seal_share
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.math import ring
from flhe.schemes.sash.adder import SashAdder, SashOpener, SashSealer
from flhe.schemes.sash.generator import Seed
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot
from flhe_lab.bench.contender import Laps, Setting

BITS = 16
"""Of one value, as in the paper."""


def update_of(setting: Setting, rank: int) -> NDArray[np.int32]:
    """A client's encoded update, shape (values,): always the same, over all of BITS bits."""
    rng = np.random.default_rng(rank)  # test data; keys and masks never come from here
    bound = (1 << (BITS - 1)) - 1
    return rng.integers(-bound, bound + 1, setting.values, dtype=np.int32)


class Members:
    """A group that is made up: its identities by rank, and the epoch of rank 0."""

    def __init__(self, setting: Setting) -> None:
        self.setting, size = setting, setting.cohort
        # Keys of members who are made up; they guard nothing.
        seeds = [(i + 1).to_bytes(32, "big") for i in range(size)]
        self._identities = sorted(map(Identity, seeds), key=lambda each: each.public)
        members = tuple(Member(f"{i}", each.public) for i, each in enumerate(self._identities))
        roster = Roster(members, (size - 1) // 3, 2, ("*",))
        self._epoch = Epoch(
            id=bytes(range(16)),
            number=1,
            run_id=1,
            contract=bytes(32),
            roster=roster,
            members=roster.publics,
            rank=0,
            group_key=bytes(32),
            pair_keys=(b"", *seeds[:-1]),
        )
        self._slot = Slot(1, roster.hash, self._epoch.id, 1, 0, bytes(32), bytes(32))


class Uploads:
    """Everybody's ciphertexts under SASH: their sum, their seeds', and what it should open to."""

    def __init__(self, adder: SashAdder, setting: Setting, slot: Slot) -> None:
        self._adder, self._setting, self._slot = adder, setting, slot
        self.expected = np.zeros(setting.values, np.int64)
        self.seeds: Seed = np.zeros(adder.scheme.elements(adder.cohort), np.uint64)
        total: Sealed | None = None
        for rank in setting.survivors:
            sealed, seed = self.seal(rank)
            total = adder.add(total, sealed)
            self.seeds = ring.add(self.seeds, seed)
            self.expected += self.update(rank)
        assert total is not None
        self.total = total

    def update(self, rank: int) -> NDArray[np.int32]:
        """A client's update of 16 bits, cut to as many as there is room for."""
        bound, cut = self._adder.space.bound, max(0, BITS - self._adder.bits)
        update: NDArray[np.int32] = update_of(self._setting, rank) >> cut
        return np.clip(update, -bound, bound, out=update)

    def seal(self, rank: int, update: NDArray[np.int32] | None = None) -> tuple[Sealed, Seed]:
        """A client's ciphertext, and the seed of its mask; of `update` where that is at hand."""
        sealer = SashSealer(self._adder, rank)
        values = self.update(rank) if update is None else update
        sealed = sealer.encrypt(Plain(values, np.empty(0, np.int32)), self._slot)
        return sealed, sealer.take_seed(self._slot)


def checked(name: str, found: NDArray[Any], expected: NDArray[Any], seconds: float) -> Laps:
    """The server's seconds; FlheError unless it found the sum."""
    if not np.array_equal(found, expected):
        raise FlheError(f"{name}: the sum is not the sum; its times mean nothing")
    return Laps(server=seconds)


class SashMembers(Members):
    """One real client, of rank 0, and a real server.

    The survivors upload, and answer to the end.
    """

    projected = False

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        scheme = Sash()
        self.adder, self._elements = scheme.adder(setting.cohort), scheme.elements(setting.cohort)
        self._upload()
        self.circle = SharingParameters.of(self._epoch, self._elements)
        self._make_others()

    def _upload(self) -> None:
        """Everybody's ciphertexts, and what the sum should be."""
        self._uploads = Uploads(self.adder, self.setting, self._slot)
        self._seeds = self._uploads.seeds

    def _make_others(self) -> None:
        """What the others send to rank 0, and what all of them answer in the end."""
        senders, name = self.setting.survivors, self._slot.digest()
        share = pack_elements(np.zeros(self.circle.share_bytes // 8, np.uint64))
        self._boxes = [
            b"" if rank == 0 else seal_share(self._epoch.pair_keys[rank], name, rank, 0, share)
            for rank in senders
        ]
        said = self.circle.statement(senders)
        self._signatures = [self._signed(CONSIST, rank, said, b"").signature for rank in senders]
        rows = self.circle.sharing.share(self._seeds)
        self._answers = [
            answer_of(
                rank,
                self._signed(UNMASK, rank, pack_elements(rows[rank]), self.circle.about(senders)),
            )
            for rank in senders
        ]
        self.client_bytes = sum(map(len, self._boxes)) * 2 + 66 * len(senders)

    def _signed(self, stage: str, rank: int, payload: bytes, about: bytes) -> Envelope:
        header = self.circle.header(self._slot, stage, rank, about)
        return Envelope.seal(self._identities[rank], header, payload)

    def client(self) -> Laps:
        """Seconds of rank 0: the ciphertext, shares, signature and answer."""
        update = self._uploads.update(0)
        began = time.perf_counter()
        _, seed = self._uploads.seal(0, update)
        self._deal(seed)
        self._agree_on()
        self._release()
        return Laps(client=time.perf_counter() - began)

    def _deal(self, seed: Seed) -> None:
        self._dealt = masking.deal(self._epoch, self._slot, seed)

    def _agree_on(self) -> None:
        own, senders = self._identities[0], self.setting.survivors
        self._agreed, _ = masking.agree(
            self._epoch, own, self._dealt, senders, self._boxes, self._elements
        )

    def _release(self) -> None:
        count = self.circle.thresholds.threshold
        masking.release(
            self._epoch,
            self._identities[0],
            self._agreed,
            self.setting.survivors[:count],
            self._signatures[:count],
            sealed=False,
        )

    def _combine(self) -> Seed:
        return combine(self.circle, self._slot, self.setting.survivors, self._answers)

    def server(self) -> Laps:
        """Seconds from the answers to the sum."""
        began = time.perf_counter()
        found = SashOpener(self.adder, self._combine()).decrypt(self._uploads.total)
        seconds = time.perf_counter() - began
        return checked("sash", found, self._uploads.expected, seconds)
