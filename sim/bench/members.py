"""SASH, SecAgg and SecAgg+ of flhe, and SASH+, whose seeds SecAgg+ adds up, in `secure_sums`.

One client is real, of rank 0, with all it does but quantizing, and a server that opens sums. The other
members' keys, shares, boxes, signatures and answers are what they would have sent, made without their
own steps; under SASH their ciphertexts are real.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import Packing
from flhe.errors import FlheError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import Answer, combine
from flhe.keys.agreement.circle import CONSIST, UNMASK, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import pack_elements, seal_share, seal_to
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.math import ring
from flhe.math.buffers import empty
from flhe.math.prg import random_elements
from flhe.schemes.sash.adder import SashAdder, SashOpener, SashSealer, Seed
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.canonical import dumps
from flhe_lab.bench.contender import Laps, Setting
from flhe_lab.variants.secagg import pairwise
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.masks import Term, agree, apply, commitment, self_key, towards
from flhe_lab.variants.secagg.pairwise import State
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.server import unmask_sum

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

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        scheme = Sash()
        self.adder, self._elements = scheme.adder(setting.cohort), scheme.elements(setting.cohort)
        self._upload()
        self.circle = SharingParameters.of(self._epoch, self._elements)
        self._make_others()

    def _upload(self) -> None:
        self._uploads = Uploads(self.adder, self.setting, self._slot)
        self._seeds = self._uploads.seeds

    def _make_others(self) -> None:
        """What the others send to rank 0, and what all of them answer in the end."""
        senders, name = self.setting.survivors, self._slot.digest()
        share = pack_elements(np.zeros(self.circle.share_bytes // 8, np.uint64))
        self._boxes = [b"" if rank == 0 else self._box(rank, name, share) for rank in senders]
        said = self.circle.statement(senders)
        self._signatures = [self._signed(CONSIST, rank, said, b"").signature for rank in senders]
        rows = self.circle.sharing.share(self._seeds)
        self._answers = [
            self._answer(rank, pack_elements(rows[rank]), self.circle.about(senders))
            for rank in senders
        ]
        moved = sum(map(len, self._boxes)) + sum(self.circle.sent_bytes(0))
        self.client_bytes = moved + 66 * len(senders)

    def _box(self, rank: int, name: bytes, share: bytes) -> bytes:
        held = b"" if rank in self.circle.leaders(0) else share
        return seal_share(self._epoch.pair_keys[rank], name, rank, 0, held)

    def _answer(self, rank: int, payload: bytes, about: bytes) -> bytes:
        signature = self._signed(UNMASK, rank, payload, about).signature
        return Answer(rank, payload, signature).to_bytes()

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


class Pairwise(Members):
    """SecAgg on a graph, or among all where there is no degree.

    The sum is made from the senders' side; what the server makes of it is checked each time.
    """

    def __init__(self, setting: Setting, degree: int | None) -> None:
        super().__init__(setting)
        size = setting.cohort
        graph = Graph(size, size - 1) if degree is None else Graph(size, degree, bytes(range(16)))
        # On a sparse graph: more than half, the least that lets no two sets be opened.
        threshold = None if graph.complete else graph.holders // 2 + 1
        length, elements = self._masked()
        self.plan = Plan.of(
            self._epoch, round=1, length=length, elements=elements, graph=graph, threshold=threshold
        )
        self._make_members()
        self._prepare()

    def _masked(self) -> tuple[int, bool]:
        """Length of what is masked, and whether it is of field elements.

        Values travel in lanes in which a sum of all members' never wraps; masks are of 32 bits.
        """
        self.packing = Packing(BITS + (self.setting.cohort - 1).bit_length())
        return self.setting.values, False

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
        shares = [plan.shamir.share(row).astype("<u8") for row in rows]
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

    def _sum(self) -> NDArray[np.uint8]:
        """What the senders' ciphertexts come to: masks between them cancel, the others are added."""
        senders = self.setting.survivors
        plain = np.zeros(self.setting.values, np.int64)
        for rank in senders:
            plain += update_of(self.setting, rank)
        self._expected = plain
        lanes = plain.astype(np.uint32)
        apply(self.plan, lanes, self._masks())
        return self.packing.pack(lanes.view(np.int32), np.zeros(lanes.size, np.uint32))

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

    def _upload(self, shared: State, update: NDArray[np.int32]) -> State:
        masked, lanes = pairwise.mask(shared, self._boxes, np.zeros(update.size, np.uint32))
        data = empty(self.packing.nbytes(update.size), np.uint8)
        self.packing.pack(update.astype(self.packing.signed), lanes.view(np.uint32), data)
        return masked

    def _known(self) -> dict[str, Any]:
        """What the server has beside the sum."""
        return {
            "keys": self._keys,
            "sharers": range(self.setting.cohort),
            "senders": self.setting.survivors,
            "answers": self._answers,
        }

    def server(self) -> Laps:
        """Seconds from the answers to the sum."""
        began = time.perf_counter()
        zeros, lanes = np.zeros(self.plan.length, np.uint32), empty(self.plan.length, np.int32)
        packed = self.packing.unpack(self._total, zeros, lanes).view(np.uint32)
        found = self.packing.signed_of(unmask_sum(self.plan, packed, **self._known()))
        seconds = time.perf_counter() - began
        return checked("secagg", found, self._expected, seconds)


class SashNeighbours(Pairwise):
    """SASH+: the seeds are added up on a graph, by SecAgg+."""

    def __init__(self, setting: Setting, degree: int) -> None:
        self.sash = Sash().adder(setting.cohort)
        super().__init__(setting, degree)

    def _masked(self) -> tuple[int, bool]:
        return self.sash.scheme.elements(self.sash.cohort), True

    def _prepare(self) -> None:
        """Everybody's ciphertexts, and the sum of their masked seeds."""
        self._uploads = Uploads(self.sash, self.setting, self._slot)
        self._sums = self._uploads.seeds.copy()
        apply(self.plan, self._sums, self._masks())

    def _update(self) -> NDArray[np.int32]:
        return self._uploads.update(0)

    def _upload(self, shared: State, update: NDArray[np.int32]) -> State:
        _, seed = self._uploads.seal(0, update)
        masked, _ = pairwise.mask(shared, self._boxes, seed)
        return masked

    def server(self) -> Laps:
        """Seconds from the answers to the sum."""
        masked = self._sums.copy()  # it is used up
        began = time.perf_counter()
        seeds = unmask_sum(self.plan, masked, **self._known())
        found = SashOpener(self.sash, seeds.astype(np.uint64)).decrypt(self._uploads.total)
        seconds = time.perf_counter() - began
        return checked("sash+", found, self._uploads.expected, seconds)
