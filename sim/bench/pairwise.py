"""SecAgg and SecAgg+ of flhe, and SASH+, whose seeds they add up, in `secure_sums`.

One client is real, and the server; the members around them are made up. The others' keys, shares,
boxes, signatures and answers are what they would have sent, made without their own steps.
"""

from __future__ import annotations

import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import seal_to
from flhe.math.prg import random_elements
from flhe.math.shamir import Shamir
from flhe.schemes.sash.adder import SashOpener
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.wire.canonical import dumps
from flhe_lab.bench.contender import Laps, Setting
from flhe_lab.bench.sash_members import BITS, Members, Uploads, checked, update_of
from flhe_lab.variants.sash_plus.bounds import PURPOSE
from flhe_lab.variants.secagg import pairwise
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.masks import Term, agree, apply, commitment, self_key, towards
from flhe_lab.variants.secagg.pairwise import Masked, Shared
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.scheme import SecAgg, SecAggOpener, SecAggSealer
from flhe_lab.variants.secagg.server import unmask_sum


class Pairwise(Members):
    """SecAgg on a graph, or among all where there is no degree.

    The sum is made from the senders' side, and the server takes it apart from the other one; it is
    checked each time.
    """

    projected = False

    def __init__(self, setting: Setting, degree: int | None) -> None:
        super().__init__(setting)
        size = setting.cohort
        graph = Graph.full(size) if degree is None else Graph(size, degree, bytes(range(16)))
        # On a sparse graph: more than half, the least that lets no two sets be opened.
        threshold = None if graph.complete else graph.holders // 2 + 1
        self.plan = self._plan(graph, threshold)
        self._make_members()
        self._prepare()

    def _plan(self, graph: Graph, threshold: int | None) -> Plan:
        self.adder = SecAgg(self.setting.cohort, BITS)
        values = self.setting.values
        return self.adder.plan(self._epoch, self._slot, values, graph=graph, threshold=threshold)

    def _prepare(self) -> None:
        """What the server has when the answers are in."""
        self._total = self._sum()

    def _masks(self) -> list[Term]:
        """What is left of the senders' masks in their sum: those of seeds, and those with the gone."""
        plan, senders = self.plan, self.setting.survivors
        gone = set(range(self.setting.cohort)) - set(senders)
        terms: list[Term] = [(True, self_key(self._seed[r], plan, r)) for r in senders]
        for rank in senders:
            for other in gone.intersection(plan.graph.neighbours(rank)):
                key = agree(self._secret[rank], self._public[other], plan, rank, other)
                terms.append((towards(rank, other), key))
        return terms

    def _make_members(self) -> None:
        """Everybody's secrets, keys, shares, signatures and answers."""
        plan, senders = self.plan, self.setting.survivors
        count = len(plan.members)
        rows = random_elements(8 * count).reshape(count, 8)
        self._seed = [row[:4].astype("<u8").tobytes() for row in rows]
        self._secret = [
            X25519PrivateKey.from_private_bytes(row[4:].astype("<u8").tobytes()) for row in rows
        ]
        self._public = [each.public_key().public_bytes_raw() for each in self._secret]
        self._keys = {
            r: self._signed(
                pairwise.KEY, r, dumps([self._public[r], commitment(self._seed[r], plan, r)])
            )
            for r in range(count)
        }
        shamir = Shamir(plan.graph.holders, plan.threshold, plan.threshold - 1)
        shares = [shamir.share(row).astype("<u8") for row in rows]
        place = [{other: i for i, other in enumerate(plan.graph.around(r))} for r in range(count)]
        self._boxes = {
            r: seal_to(
                self._epoch.pair_keys[r],
                plan.header(pairwise.SHARE, r, 0),
                shares[r][place[r][0]].tobytes(),
            )
            for r in plan.graph.neighbours(0)
        }
        bits, chosen = pairwise.to_bits(plan, senders), set(senders)
        self._statements = [
            self._signed(pairwise.WITH, r, pairwise.to_bits(plan, plan.graph.around(r)))
            for r in plan.graph.neighbours(0)
            if r in chosen
        ]
        self._sets = [
            self._signed(pairwise.SET, r, bits) for r in plan.graph.neighbours(0) if r in chosen
        ]
        self._answers = []
        for rank in senders:
            owners = plan.graph.around(rank)
            halves = [shares[o][place[o][rank]].reshape(2, 4)[int(o not in chosen)] for o in owners]
            data = b"".join(half.tobytes() for half in halves)
            answer = dumps([bits, pairwise.to_bits(plan, owners), data])
            self._answers.append(self._signed(pairwise.OPEN, rank, answer))

    def _signed(self, stage: str, rank: int, payload: bytes) -> bytes:
        header = self.plan.header(stage, rank)
        return Envelope.seal(self._identities[rank], header, payload).to_bytes()

    def _sum(self) -> Sealed:
        """What the senders' ciphertexts come to: masks between them cancel, the others are added."""
        senders = self.setting.survivors
        plain = np.zeros(self.setting.values, np.int64)
        for rank in senders:
            plain += update_of(self.setting, rank)
        self._expected = plain
        lanes = plain.astype(np.uint32)
        apply(self.plan, lanes, self._masks())
        data = self.adder.packing.pack(lanes.view(np.int32), np.zeros(lanes.size, np.uint32))
        return Sealed(self.adder.name, self._slot, senders, lanes.size, data)

    def client(self) -> Laps:
        """Seconds of rank 0: all steps and the ciphertext."""
        keys, update = [self._keys[r] for r in self.plan.graph.neighbours(0)], self._update()
        began = time.perf_counter()
        first, _ = pairwise.advertise(self._identities[0], self._epoch, self.plan)
        second, _ = pairwise.share(first, keys)
        third, _ = pairwise.consist(
            self._upload(second, update), self.setting.survivors, self._statements
        )
        pairwise.unmask(third, self._sets)
        return Laps(client=time.perf_counter() - began)

    def _update(self) -> NDArray[np.int32]:
        return update_of(self.setting, 0)

    def _upload(self, shared: Shared, update: NDArray[np.int32]) -> Masked:
        sealer = SecAggSealer(self.adder, shared, self._boxes)
        sealer.encrypt(Plain(update, np.empty(0, np.int32)), self._slot)
        assert sealer.masked is not None
        return sealer.masked

    def server(self) -> Laps:
        """Seconds from the answers to the sum."""
        began = time.perf_counter()
        opener = SecAggOpener(
            self.adder, self.plan, self._keys, range(self.setting.cohort), self._answers
        )
        found = opener.decrypt(self._total)
        seconds = time.perf_counter() - began
        return checked("secagg", found, self._expected, seconds)


class SashNeighbours(Pairwise):
    """SASH+: the seeds are added up on a graph, by SecAgg+."""

    def __init__(self, setting: Setting, degree: int) -> None:
        self.sash = Sash().adder(setting.cohort)
        super().__init__(setting, degree)

    def _plan(self, graph: Graph, threshold: int | None) -> Plan:
        return Plan.of(
            self._epoch,
            purpose=PURPOSE,
            round=1,
            attempt=0,
            length=self.sash.scheme.elements(self.sash.cohort),
            elements=True,
            graph=graph,
            threshold=threshold,
        )

    def _prepare(self) -> None:
        """Everybody's ciphertexts, and the sum of their masked seeds."""
        self._uploads = Uploads(self.sash, self.setting, self._slot)
        self._masked = self._uploads.seeds.copy()
        apply(self.plan, self._masked, self._masks())

    def _update(self) -> NDArray[np.int32]:
        return self._uploads.update(0)

    def _upload(self, shared: Shared, update: NDArray[np.int32]) -> Masked:
        _, seed = self._uploads.seal(0, update)
        masked, _ = pairwise.mask(shared, self._boxes, seed)
        return masked

    def server(self) -> Laps:
        """Seconds from the answers to the sum."""
        masked = self._masked.copy()  # it is used up
        began = time.perf_counter()
        seeds = unmask_sum(
            self.plan,
            masked,
            keys=self._keys,
            sharers=range(self.setting.cohort),
            senders=self.setting.survivors,
            answers=self._answers,
        )
        found = SashOpener(self.sash, seeds.astype(np.uint64)).decrypt(self._uploads.total)
        seconds = time.perf_counter() - began
        return checked("sash+", found, self._uploads.expected, seconds)
