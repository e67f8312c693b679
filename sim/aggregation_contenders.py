"""Who takes part in `secure_aggregation`: SecAgg and SecAgg+ of flhe, and Flower's SecAgg+.

A contender is one client and one server of one setting, each timed by itself: `client` does all that
one client does in a round but training and quantizing, `server` what comes between the last answer and
the sum. Both give seconds, so that what must be made ready beforehand is not in them. Another joins by
a `Maker`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flhe.coding.base import Plain
from flhe.errors import ConfigError, FlheError
from flhe.keys.canonical import dumps
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.messages import Envelope
from flhe.keys.pairs import seal_to
from flhe.keys.roster import Member, Roster
from flhe.math.prg import random_elements
from flhe.math.shamir import Shamir
from flhe.sealed import Sealed, Slot
from flhe.sim.legacy_secagg import LegacySecAgg, LegacySetting, Projection
from flhe.sim.variants.secagg import pairwise
from flhe.sim.variants.secagg.graph import Graph
from flhe.sim.variants.secagg.masks import Term, agree, apply, commitment, self_key, towards
from flhe.sim.variants.secagg.plan import Plan
from flhe.sim.variants.secagg.scheme import SecAgg, SecAggOpener, SecAggSealer

DEGREE = 100
"""k: neighbours of a client under SecAgg+ and SASH+, as in the paper."""

BITS = 16
"""Of one value, as in the paper."""

WHOLE = 50
"""Clients up to which Flower's round is run whole, not projected."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of a figure.

    Parameters
    ----------
    clients : int
        N, at least 3.
    values : int
        M, values of an update.
    dropout : float
        Share of the clients that agree on keys and upload nothing.
    """

    clients: int
    values: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.clients < 3 or self.values < 1 or not 0 <= self.dropouts <= self.clients - 2:
            raise ConfigError(f"{self}: at least 3 clients and 1 value; 2 clients must remain")

    @property
    def dropouts(self) -> int:
        """Clients that drop out; `dropout` in whole clients."""
        return round(self.clients * self.dropout)

    @property
    def gone(self) -> frozenset[int]:
        """Ranks of those, spread evenly, never rank 0."""
        step = self.clients / max(self.dropouts, 1)
        return frozenset(math.ceil((i + 1) * step) - 1 for i in range(self.dropouts))

    @property
    def senders(self) -> tuple[int, ...]:
        """Ranks of the others."""
        return tuple(r for r in range(self.clients) if r not in self.gone)

    def update(self, rank: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """A client's encoded update, shape (values,): always the same, over all of BITS bits."""
        rng = np.random.default_rng(rank)  # test data; keys and masks never come from here
        bound = (1 << (BITS - 1)) - 1
        return rng.integers(-bound, bound + 1, self.values, dtype=np.int32)


class Contender(Protocol):
    """One client and one server."""

    @property
    def projected(self) -> bool:
        """Whether the server's seconds are added up from those of its parts."""

    def client(self) -> float:
        """Seconds of one client, a whole round."""

    def server(self) -> float:
        """Seconds from the last answer to the sum; raises FlheError if it is not the sum."""


@dataclass(frozen=True, slots=True)
class Maker:
    """How to make a contender.

    Parameters
    ----------
    name : str
        In the figure.
    make : callable
        Setting -> Contender, or None where it has no point.
    max_repeats : int
        Repeats beyond which waiting for it teaches nothing.
    """

    name: str
    make: Callable[[Setting], Contender | None]
    max_repeats: int = 1_000_000


class Pairwise:
    """SecAgg on a graph: one real client and a real server, among members made up around them.

    The others' keys, shares, boxes, signatures and answers are what they would have sent, made without
    their own steps. The sum is made from the senders' side, and the server takes it apart from the
    other one; it is checked each time.
    """

    projected = False

    def __init__(self, setting: Setting, degree: int | None) -> None:
        self.setting, size = setting, setting.clients
        self._identities = [Identity(i) for i in _seeds(size)]
        self._identities.sort(key=lambda each: each.public)
        collusion = (size - 1) // 3
        members = tuple(Member(f"{i}", each.public) for i, each in enumerate(self._identities))
        roster = Roster(members, collusion, 2, ("*",))
        graph = Graph.full(size) if degree is None else Graph(size, degree, bytes(range(16)))
        # On a sparse graph: more than half, the least that lets no two sets be opened.
        threshold = None if graph.complete else graph.holders // 2 + 1
        self._epoch = Epoch(
            id=bytes(range(16)),
            number=1,
            run_id=1,
            roster=roster,
            members=roster.publics,
            rank=0,
            group_key=bytes(32),
            pair_keys=(b"", *_seeds(size - 1)),
        )
        self._slot = Slot(1, roster.hash, self._epoch.id, 1, 0, bytes(32), bytes(32))
        self.plan = self._plan(graph, threshold)
        self._make_members()
        self._prepare()

    def _plan(self, graph: Graph, threshold: int | None) -> Plan:
        self.scheme = SecAgg(self.setting.clients, BITS)
        values = self.setting.values
        return self.scheme.plan(self._epoch, self._slot, values, graph=graph, threshold=threshold)

    def _prepare(self) -> None:
        """What the server has when the answers are in."""
        self._total = self._sum()

    def _masks(self) -> list[Term]:
        """What is left of the senders' masks in their sum: those of seeds, and those with the gone."""
        plan, senders, gone = self.plan, self.setting.senders, self.setting.gone
        terms: list[Term] = [(True, self_key(self._seed[r], plan, r)) for r in senders]
        for rank in senders:
            for other in gone.intersection(plan.graph.neighbours(rank)):
                key = agree(self._secret[rank], self._public[other], plan, rank, other)
                terms.append((towards(rank, other), key))
        return terms

    def _make_members(self) -> None:
        """Everybody's secrets, keys, shares, signatures and answers."""
        plan, senders = self.plan, self.setting.senders
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
        senders = self.setting.senders
        plain = np.zeros(self.setting.values, np.int64)
        for rank in senders:
            plain += self.setting.update(rank)
        self._expected = plain
        lanes = plain.astype(np.uint32)
        apply(self.plan, lanes, self._masks())
        data = self.scheme.packing.pack(lanes.view(np.int32), np.zeros(lanes.size, np.uint32))
        return Sealed(self.scheme.name, self._slot, senders, lanes.size, data)

    def client(self) -> float:
        """Seconds of rank 0: all steps and the ciphertext."""
        near = self.plan.graph.neighbours(0)
        keys = [self._keys[rank] for rank in near]
        plain = Plain(self.setting.update(0), np.empty(0, np.int32))
        began = time.perf_counter()
        first, _ = pairwise.advertise(self._identities[0], self._epoch, self.plan)
        second, _ = pairwise.share(first, keys)
        sealer = SecAggSealer(self.scheme, second, self._boxes)
        sealer.encrypt(plain, self._slot)
        assert sealer.masked is not None
        third, _ = pairwise.consist(sealer.masked, self.setting.senders, self._statements)
        pairwise.unmask(third, self._sets)
        return time.perf_counter() - began

    def server(self) -> float:
        """Seconds from the answers to the sum."""
        began = time.perf_counter()
        opener = SecAggOpener(
            self.scheme, self.plan, self._keys, range(self.setting.clients), self._answers
        )
        found = opener.decrypt(self._total)
        seconds = time.perf_counter() - began
        if not np.array_equal(found, self._expected):
            raise FlheError("secagg: the sum is not the sum; its times mean nothing")
        return seconds


def _seeds(count: int) -> list[bytes]:
    """Keys of members who are made up; they guard nothing."""
    return [(i + 1).to_bytes(32, "big") for i in range(count)]


def _sparse(setting: Setting) -> Contender | None:
    return Pairwise(setting, DEGREE) if setting.clients > DEGREE + 1 else None


def _legacy(setting: Setting) -> Contender | None:
    """On DEGREE neighbours; whole while all are neighbours and few."""
    shares = min(DEGREE + 1, setting.clients)
    legacy = LegacySetting(
        setting.clients, setting.values, shares, shares // 2 + 1, setting.dropouts
    )
    return LegacySecAgg(legacy) if setting.clients <= WHOLE else Projection(legacy)


SECAGG = Maker("SecAgg", lambda setting: Pairwise(setting, None))
SECAGG_PLUS = Maker("SecAgg+", _sparse)
LEGACY = Maker("SecAgg+ of Flower", _legacy, max_repeats=1)
MAKERS = (SECAGG, SECAGG_PLUS, LEGACY)
"""Those that are built here; `sash_aggregation` adds SASH and SASH+."""
