"""A second implementation of masking-key agreement, from the formulas alone: no flhe code.

CBOR and HKDF are written by hand, field elements are Python's integers; Ed25519 and ChaCha20-Poly1305
are PyCryptodome's. It makes the good cases of tests/vectors/masking.json; what must fail is data.
"""

from __future__ import annotations

import hashlib
from typing import Any

from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.PublicKey import ECC

from tests.keys.make_vectors import SUITE, roster, signed
from tests.reference.field import Q, elements
from tests.reference.shamir import shared
from tests.reference.wire import cbor, columns, hkdf, little, little_read


def sha(*parts: Any) -> bytes:
    """What stands for anything random."""
    return hashlib.sha256(cbor(["masking", *parts])).digest()


def tape(length: int, *parts: Any) -> bytes:
    return b"".join(sha(*parts, i) for i in range(-(-length // 32)))[:length]


def box(key: bytes, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    cipher = ChaCha20_Poly1305.new(key=key, nonce=nonce)
    cipher.update(bound)
    return b"".join(cipher.encrypt_and_digest(plain))


class Members:
    """Members of one epoch, and the one round that they agree in."""

    def __init__(self, name: str, size: int, collusion: int, count: int) -> None:
        self.name, self.size, self.collusion, self.elements = name, size, collusion, count
        pairs = [
            (ECC.construct(curve="Ed25519", seed=seed), seed)
            for seed in (sha(name, "identity", i) for i in range(size))
        ]
        self._signing = sorted(
            ((s.public_key().export_key(format="raw"), s, seed) for s, seed in pairs),
            key=lambda each: each[0],
        )
        self.publics = [public for public, _, _ in self._signing]
        self.seeds = [seed for _, _, seed in self._signing]
        members = [[f"site-{i}", public.hex()] for i, public in enumerate(self.publics)]
        bounds = {"collusion": collusion, "min_survivors": 2, "schemes": ["*"]}
        made = roster({"members": members, "revoked": [], "limits": {}, **bounds})
        self.roster = bytes.fromhex(made["roster"])
        self.group_key = sha(name, "group")
        self.slot = [
            2**64 - 3,
            hashlib.sha256(self.roster).digest(),
            sha(name, "epoch")[:16],
            7,
            1,
            sha(name, "layout"),
            sha(name, "history"),
        ]
        self.number = 5
        self.digest = hashlib.sha256(cbor(["flhe/v1/slot", *self.slot])).digest()
        self.threshold = (size + collusion) // 2 + 1
        self.privacy = collusion + max((self.threshold - collusion) // 4, 1)
        self._shares = [
            shared(size, self.threshold, self.seed(rank), self._derived(rank))
            for rank in range(size)
        ]

    def _derived(self, rank: int) -> dict[int, list[int]]:
        """The shares that do not travel, of the ranks after a member's: by the nonce of a box."""
        width = -(-self.elements // (self.threshold - self.privacy))
        told = {}
        for other in self._following(rank):
            of = self.digest, rank, other, self._nonce(rank, other)
            told[other] = elements(
                hkdf(self.pair_key(rank, other), "kshare-derived", *of), 0, width
            )
        return told

    def _following(self, rank: int) -> list[int]:
        return sorted((rank + i) % self.size for i in range(1, self.privacy + 1))

    def _nonce(self, rank: int, receiver: int) -> bytes:
        """Nonces are drawn for derived shares first, then for the others, by rank."""
        derived = self._following(rank)
        others = [r for r in range(self.size) if r != rank and r not in derived]
        place = 12 * [*derived, *others].index(receiver)
        return self.random(rank)[place : place + 12]

    def pair_key(self, a: int, b: int) -> bytes:
        return b"" if a == b else sha(self.name, "pair", min(a, b), max(a, b))

    def seed(self, rank: int) -> list[int]:
        """What a member shares; the first has the greatest element in it."""
        drawn = [x % Q for x in little_read(tape(8 * self.elements, self.name, "seed", rank))]
        return [Q - 1, *drawn[1:]] if rank == 0 else drawn

    def random(self, rank: int) -> bytes:
        """Nonces of boxes."""
        return tape(12 * (self.size - 1), self.name, "deal", rank)

    def share(self, rank: int, receiver: int) -> bytes:
        return little(self._shares[rank][receiver])

    def box(self, rank: int, receiver: int) -> bytes:
        if rank == receiver:
            return b""
        nonce, held = self._nonce(rank, receiver), self.share(rank, receiver)
        held = b"" if receiver in self._following(rank) else held
        key = hkdf(self.pair_key(rank, receiver), "kshare", self.digest, rank, receiver)
        return nonce + box(key, nonce, held, self.digest)

    def header(self, stage: str, sender: int, about: bytes = b"") -> dict[str, Any]:
        return {
            "v": 1,
            "suite": SUITE,
            "roster_hash": self.slot[1],
            "run_id": self.slot[0],
            "epoch": self.number,
            "round": self.slot[3],
            "attempt": self.slot[4],
            "stage": stage,
            "sender": self.publics[sender],
            "receiver": b"",
            "policy_hash": about,
            "layout_hash": self.digest,
        }

    def sign(self, header: dict[str, Any], payload: bytes, rank: int) -> bytes:
        return signed(self._signing[rank][1], header, hashlib.sha256(payload).digest())

    def consist(self, rank: int, survivors: list[int]) -> bytes:
        return self.sign(self.header("consist", rank), cbor(survivors), rank)

    def total(self, rank: int, survivors: list[int]) -> bytes:
        """The sum of the shares that a member has of the survivors' seeds."""
        return little(columns([self._shares[u][rank] for u in survivors], Q))

    def nonce(self, rank: int) -> bytes:
        return sha(self.name, "nonce", rank)[:12]

    def answer(self, rank: int, survivors: list[int], *, sealed: bool) -> bytes:
        about = hashlib.sha256(cbor(survivors)).digest()
        header = self.header("unmask", rank, about)
        payload = self.total(rank, survivors)
        if sealed:
            key, nonce = hkdf(self.group_key, "unmask", self.digest, rank), self.nonce(rank)
            payload = nonce + box(key, nonce, payload, cbor(header))
        return cbor([rank, payload, self.sign(header, payload, rank)])

    def sum(self, survivors: list[int]) -> list[int]:
        return columns([self.seed(u) for u in survivors], Q)


def epoch(m: Members) -> dict[str, Any]:
    """What the other side needs to stand where we do."""
    return {
        "size": m.size,
        "collusion": m.collusion,
        "elements": m.elements,
        "identities": [seed.hex() for seed in m.seeds],
        "roster": m.roster.hex(),
        "number": m.number,
        "group_key": m.group_key.hex(),
        "slot": [x.hex() if isinstance(x, bytes) else x for x in m.slot],
    }


def whole(m: Members, survivors: list[int]) -> dict[str, Any]:
    """Everything that anybody says, in a small group."""
    ranks = range(m.size)
    return {
        "name": m.name,
        **epoch(m),
        "pair_keys": [[m.pair_key(a, b).hex() for b in ranks] for a in ranks],
        "seeds": [[f"{x:016x}" for x in m.seed(rank)] for rank in ranks],
        "random": [m.random(rank).hex() for rank in ranks],
        "boxes": [[m.box(a, b).hex() for b in ranks] for a in ranks],
        "own": [m.share(rank, rank).hex() for rank in ranks],
        "survivors": survivors,
        "shares": {str(rank): m.total(rank, survivors).hex() for rank in survivors},
        "signatures": {str(rank): m.consist(rank, survivors).hex() for rank in survivors},
        "nonces": {str(rank): m.nonce(rank).hex() for rank in survivors},
        "answers": [m.answer(rank, survivors, sealed=False).hex() for rank in survivors],
        "sealed": [m.answer(rank, survivors, sealed=True).hex() for rank in survivors],
        "sum": [f"{x:016x}" for x in m.sum(survivors)],
    }


def large(m: Members, survivors: list[int], receiver: int) -> dict[str, Any]:
    """One dealer and one receiver of a group where a polynomial shares several elements."""
    return {
        "name": m.name,
        **epoch(m),
        "seed": [f"{x:016x}" for x in m.seed(0)],
        "random": m.random(0).hex(),
        "pair_keys": [m.pair_key(0, b).hex() for b in range(m.size)],
        "boxes_sha256": hashlib.sha256(b"".join(m.box(0, b) for b in range(m.size))).hexdigest(),
        "survivors": survivors,
        "receiver": receiver,
        "received": [m.box(u, receiver).hex() for u in survivors],
        "receiver_keys": [m.pair_key(u, receiver).hex() for u in range(m.size)],
        "own": m.share(receiver, receiver).hex(),
        "share": m.total(receiver, survivors).hex(),
        "signature": m.consist(receiver, survivors).hex(),
        "answer_shares": {
            str(rank): m.total(rank, survivors).hex() for rank in survivors[: m.threshold]
        },
        "sum": [f"{x:016x}" for x in m.sum(survivors)],
    }


def group(case: dict[str, Any]) -> Members:
    """The members that a case is of."""
    return Members(case["name"], case["size"], case["collusion"], case["elements"])
