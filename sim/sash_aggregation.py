"""SASH in `secure_aggregation`: a client with all it does but quantizing, a server that opens sums.

The other members' shares, signatures and answers are what they would have sent, made without their own
steps; their ciphertexts are real.
"""

from __future__ import annotations

import time

import numpy as np

from flhe.coding.base import Plain
from flhe.errors import FlheError
from flhe.keys import masking
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.messages import Envelope
from flhe.keys.roster import Member, Roster
from flhe.math import ring
from flhe.schemes.sash import Sash, SashOpener, SashSealer
from flhe.sealed import Sealed, Slot
from flhe.sim.aggregation_contenders import (
    BITS,
    DEGREE,
    MAKERS,
    Contender,
    Maker,
    Pairwise,
    Setting,
)
from flhe.sim.variants.sash_plus.bounds import PURPOSE
from flhe.sim.variants.secagg import pairwise
from flhe.sim.variants.secagg.graph import Graph
from flhe.sim.variants.secagg.masks import apply
from flhe.sim.variants.secagg.plan import Plan
from flhe.sim.variants.secagg.server import unmask_sum

NOTHING = np.empty(0, np.int32)
Update = np.ndarray[tuple[int], np.dtype[np.int32]]


class SashMembers:
    """One real client, of rank 0, and a real server.

    All clients upload but those of `setting.gone`; the others answer to the end.
    """

    projected = False

    def __init__(self, setting: Setting) -> None:
        self.setting, size = setting, setting.clients
        identities = [Identity((i + 1).to_bytes(32, "big")) for i in range(size)]
        self._identities = sorted(identities, key=lambda each: each.public)
        members = tuple(Member(f"{i}", each.public) for i, each in enumerate(self._identities))
        roster = Roster(members, (size - 1) // 3, 2, ("*",))
        # Keys of members who are made up; they guard nothing.
        pair_keys = (b"", *((i + 1).to_bytes(32, "big") for i in range(size - 1)))
        self._epoch = Epoch(
            id=bytes(range(16)),
            number=1,
            run_id=1,
            roster=roster,
            members=roster.publics,
            rank=0,
            group_key=bytes(32),
            pair_keys=pair_keys,
        )
        self._slot = Slot(1, roster.hash, self._epoch.id, 1, 0, bytes(32), bytes(32))
        self.scheme = Sash(size)
        self._elements = self.scheme.parameters_of_prg.dimension
        self.circle = masking.Circle.of(self._epoch, self._elements)
        # As many bits as there is room for: an update of 16 bits is cut to them.
        self._shift = max(0, BITS - self.scheme.bits)
        self._upload()
        self._agree()

    def _update(self, rank: int) -> Update:
        bound = self.scheme.space.bound
        cut: Update = np.clip(self.setting.update(rank) >> self._shift, -bound, bound)
        return cut

    def _upload(self) -> None:
        """Everybody's ciphertexts, and what the sum should be."""
        expected = np.zeros(self.setting.values, np.int64)
        total: Sealed | None = None
        seeds = np.zeros(self._elements, np.uint64)
        for rank in self.setting.senders:
            sealer, update = SashSealer(self.scheme, rank), self._update(rank)
            total = self.scheme.add(total, sealer.encrypt(Plain(update, NOTHING), self._slot))
            seeds = ring.add(seeds, sealer.take_seed(self._slot))
            expected += update
        assert total is not None
        self._total, self._seeds, self._expected = total, seeds, expected

    def _agree(self) -> None:
        """What the others send to rank 0, and what all of them answer in the end."""
        senders, name = self.setting.senders, self._slot.digest()
        share = masking.pack_elements(np.zeros(self.circle.share_bytes // 8, np.uint64))
        self._boxes = [
            b""
            if rank == 0
            else masking.seal_share(self._epoch.pair_keys[rank], name, rank, 0, share)
            for rank in senders
        ]
        said = masking.statement(senders)
        self._signatures = [
            self._signed(masking.CONSIST, rank, said, b"").signature for rank in senders
        ]
        rows = self.circle.sharing.share(self._seeds)
        self._answers = [
            masking.answer_of(
                rank,
                self._signed(
                    masking.UNMASK, rank, masking.pack_elements(rows[rank]), masking.about(senders)
                ),
            )
            for rank in senders
        ]
        self.client_bytes = sum(map(len, self._boxes)) * 2 + 66 * len(senders)

    def _signed(self, stage: str, rank: int, payload: bytes, about: bytes) -> Envelope:
        header = self.circle.header(self._slot, stage, rank, about)
        return Envelope.seal(self._identities[rank], header, payload)

    def client(self) -> float:
        """Seconds of rank 0: the ciphertext, shares, signature and answer."""
        update, senders = self._update(0), self.setting.senders
        began = time.perf_counter()
        sealer = SashSealer(self.scheme, 0)
        sealer.encrypt(Plain(update, NOTHING), self._slot)
        dealt = masking.deal(self._epoch, self._slot, sealer.take_seed(self._slot))
        agreed, _ = masking.agree(
            self._epoch, self._identities[0], dealt, senders, self._boxes, self._elements
        )
        masking.release(
            self._epoch,
            self._identities[0],
            agreed,
            senders[: self.circle.thresholds.threshold],
            self._signatures[: self.circle.thresholds.threshold],
            self._elements,
            sealed=False,
        )
        return time.perf_counter() - began

    def server(self) -> float:
        """Seconds from the answers to the sum."""
        began = time.perf_counter()
        seeds = masking.combine(self.circle, self._slot, self.setting.senders, self._answers)
        found = SashOpener(self.scheme, seeds).decrypt(self._total)
        seconds = time.perf_counter() - began
        if not np.array_equal(found, self._expected):
            raise FlheError("sash: the sum is not the sum; its times mean nothing")
        return seconds


class SashNeighbours(Pairwise):
    """SASH+: the seeds are added up on a graph, by SecAgg+."""

    def __init__(self, setting: Setting, degree: int) -> None:
        self.sash = Sash(setting.clients)
        self._bound = self.sash.space.bound
        self._cut = max(0, BITS - self.sash.bits)
        super().__init__(setting, degree)

    def _plan(self, graph: Graph, threshold: int | None) -> Plan:
        return Plan.of(
            self._epoch,
            purpose=PURPOSE,
            round=1,
            attempt=0,
            length=self.sash.parameters_of_prg.dimension,
            elements=True,
            graph=graph,
            threshold=threshold,
        )

    def _prepare(self) -> None:
        """Everybody's ciphertexts, and the sum of their masked seeds."""
        expected = np.zeros(self.setting.values, np.int64)
        total: Sealed | None = None
        seeds = np.zeros(self.plan.length, np.uint64)
        for rank in self.setting.senders:
            sealer, update = SashSealer(self.sash, rank), self._update(rank)
            total = self.sash.add(total, sealer.encrypt(Plain(update, NOTHING), self._slot))
            seeds = ring.add(seeds, sealer.take_seed(self._slot))
            expected += update
        assert total is not None
        apply(self.plan, seeds, self._masks())
        self._uploads, self._masked, self._expected = total, seeds, expected

    def _update(self, rank: int) -> Update:
        cut: Update = np.clip(self.setting.update(rank) >> self._cut, -self._bound, self._bound)
        return cut

    def client(self) -> float:
        """Seconds of rank 0: the ciphertext, and all steps for its seed."""
        keys = [self._keys[rank] for rank in self.plan.graph.neighbours(0)]
        plain = Plain(self._update(0), NOTHING)
        began = time.perf_counter()
        first, _ = pairwise.advertise(self._identities[0], self._epoch, self.plan)
        second, _ = pairwise.share(first, keys)
        sealer = SashSealer(self.sash, 0)
        sealer.encrypt(plain, self._slot)
        third, _ = pairwise.mask(second, self._boxes, sealer.take_seed(self._slot))
        fourth, _ = pairwise.consist(third, self.setting.senders, self._statements)
        pairwise.unmask(fourth, self._sets)
        return time.perf_counter() - began

    def server(self) -> float:
        """Seconds from the answers to the sum."""
        masked = self._masked.copy()  # it is used up
        began = time.perf_counter()
        seeds = unmask_sum(
            self.plan,
            masked,
            keys=self._keys,
            sharers=range(self.setting.clients),
            senders=self.setting.senders,
            answers=self._answers,
        )
        found = SashOpener(self.sash, seeds.astype(np.uint64)).decrypt(self._uploads)
        seconds = time.perf_counter() - began
        if not np.array_equal(found, self._expected):
            raise FlheError("sash+: the sum is not the sum; its times mean nothing")
        return seconds


def _sash(setting: Setting) -> Contender | None:
    return SashMembers(setting)


def _sash_plus(setting: Setting) -> Contender | None:
    return SashNeighbours(setting, DEGREE) if setting.clients > DEGREE + 1 else None


SASH = Maker("SASH", _sash)
SASH_PLUS = Maker("SASH+", _sash_plus)
ALL = (SASH, SASH_PLUS, *MAKERS)
"""Everybody, in the order of the figure."""
