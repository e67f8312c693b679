"""Make tests/vectors/masking.json without flhe.

A second implementation of masking-key agreement, from the formulas alone: CBOR written by hand, field
elements as Python's integers, Ed25519, HKDF and ChaCha20-Poly1305 by PyCryptodome.

    python -m tests.keys.make_masking_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import Crypto
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from tests.keys.make_vectors import SUITE, cbor, hkdf
from tests.reference.field import Q
from tests.reference.shamir import shared
from tests.reference.wire import Tape, columns, little, little_read

FILE = pathlib.Path(__file__).parents[1] / "vectors/masking.json"
MADE_BY = (
    f"tests/keys/make_masking_vectors.py: CBOR and field by hand, PyCryptodome {Crypto.__version__}; "
    "no flhe code"
)


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

    def __init__(self, name: str, size: int, collusion: int, elements: int) -> None:
        self.name, self.size, self.collusion, self.elements = name, size, collusion, elements
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
        self.roster = cbor(
            {
                "v": 4,
                "members": [[f"site-{i}", public] for i, public in enumerate(self.publics)],
                "collusion": collusion,
                "min_survivors": 2,
                "schemes": ["*"],
                "revoked": [],
                "limits": [[]],
            }
        )
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
        privacy = max(collusion, 1) if size >= 65 else self.threshold - 1
        self._drawn = 8 * -(-elements // (self.threshold - privacy)) * privacy
        self._shares = [
            shared(size, self.threshold, privacy, self.seed(rank), Tape(self.random(rank)))
            for rank in range(size)
        ]

    def pair_key(self, a: int, b: int) -> bytes:
        return b"" if a == b else sha(self.name, "pair", min(a, b), max(a, b))

    def seed(self, rank: int) -> list[int]:
        """What a member shares; the first has the greatest element in it."""
        drawn = [x % Q for x in little_read(tape(8 * self.elements, self.name, "seed", rank))]
        return [Q - 1, *drawn[1:]] if rank == 0 else drawn

    def random(self, rank: int) -> bytes:
        """Coefficients, then nonces."""
        return tape(self._drawn + 12 * (self.size - 1), self.name, "deal", rank)

    def share(self, rank: int, receiver: int) -> bytes:
        return little(self._shares[rank][receiver])

    def box(self, rank: int, receiver: int) -> bytes:
        if rank == receiver:
            return b""
        place = self._drawn + 12 * (receiver - (receiver > rank))
        nonce = self.random(rank)[place : place + 12]
        key = hkdf(self.pair_key(rank, receiver), "kshare", self.digest, rank, receiver)
        return nonce + box(key, nonce, self.share(rank, receiver), self.digest)

    def header(self, stage: str, sender: int, about: bytes = b"", **changes: Any) -> dict[str, Any]:
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
            **changes,
        }

    def sign(self, header: dict[str, Any], payload: bytes, rank: int) -> bytes:
        said = hashlib.sha512(cbor([header, hashlib.sha256(payload).digest()])).digest()
        signed = cbor(["flhe/v1/" + header["stage"], said])
        signature = eddsa.new(self._signing[rank][1], "rfc8032").sign(signed)
        assert isinstance(signature, bytes)
        return signature

    def consist(self, rank: int, survivors: list[int], **changes: Any) -> bytes:
        return self.sign(self.header("consist", rank, **changes), cbor(survivors), rank)

    def total(self, rank: int, survivors: list[int]) -> bytes:
        """The sum of the shares that a member has of the survivors' seeds."""
        return little(columns([self._shares[u][rank] for u in survivors], Q))

    def salt(self, rank: int) -> bytes:
        return sha(self.name, "salt", rank)

    def answer(self, rank: int, survivors: list[int], share: bytes = b"", **how: bool) -> bytes:
        about = hashlib.sha256(cbor(survivors)).digest()
        header = self.header("unmask", rank, about)
        payload = share or self.total(rank, survivors)
        if how["sealed"]:
            key = hkdf(self.group_key, "unmask", self.digest, rank, self.salt(rank))
            payload = self.salt(rank) + box(key, bytes(12), payload, cbor(header))
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
        "salts": {str(rank): m.salt(rank).hex() for rank in survivors},
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


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def negatives(m: Members, survivors: list[int]) -> list[dict[str, Any]]:
    """Inputs of one step each, to be refused in the group that is called like this."""
    me, everybody, few = survivors[0], list(range(m.size)), m.threshold - 1
    first, second, *rest = (m.box(u, me) for u in survivors)
    own = [b"", *(m.box(me, u) for u in survivors[1:])]
    boxes = [first, second, *rest]
    signed = [m.consist(rank, survivors) for rank in survivors]
    wider = [m.consist(rank, everybody) for rank in survivors]
    later = [m.consist(rank, survivors, round=8) for rank in survivors]
    answers = [m.answer(rank, survivors, sealed=False) for rank in survivors]
    sealed = [m.answer(rank, survivors, sealed=True) for rank in survivors]
    share = m.total(me, survivors)
    changed = answers[0].replace(share[:8], flip(share[:8]))
    beyond = m.answer(me, survivors, b"\xff" * 8 + share[8:], sealed=False)
    authentication, protocol, quorum = "AuthenticationError", "ProtocolError", "QuorumError"
    shares_of = "SharesError"
    agree: list[tuple[str, str, list[int], Sequence[bytes]]] = [
        ("a box with one bit changed", shares_of, survivors, [first, flip(second), *rest]),
        ("two boxes swapped", shares_of, survivors, [first, *rest, second]),
        ("own boxes given back", shares_of, survivors, own),
        ("no box of a survivor", shares_of, survivors, [first, b"", *rest]),
        ("a box too few", protocol, survivors, boxes[:-1]),
        ("survivors out of order", protocol, survivors[::-1], boxes[::-1]),
        ("without the member itself", protocol, [u for u in everybody if u != me], boxes),
        ("too few survivors", quorum, survivors[:few], boxes[:few]),
    ]
    release: list[tuple[str, str, list[int], Sequence[bytes]]] = [
        ("too few signatures", quorum, survivors[:few], signed[:few]),
        ("a signer twice", protocol, [me] * 3, [signed[0]] * 3),
        ("signatures on another set", authentication, survivors, wider),
        ("signatures of another round", authentication, survivors, later),
    ]
    combine: list[tuple[str, str, list[int], Sequence[bytes]]] = [
        ("too few answers", quorum, survivors, answers[:few]),
        ("an answer twice", protocol, survivors, [answers[0], *answers[:2]]),
        ("a share changed", authentication, survivors, [changed, *answers[1:]]),
        ("no field element, well signed", protocol, survivors, [beyond, *answers[1:]]),
        ("sealed for the members", protocol, survivors, sealed),
    ]
    steps: list[tuple[str, dict[str, int], str, str, Any]] = [
        ("agree", {"rank": me}, "survivors", "boxes", agree),
        ("release", {"rank": me}, "signers", "signatures", release),
        ("combine", {}, "survivors", "answers", combine),
    ]
    return [
        {"name": name, "group": m.name, "at": at, "error": error}
        | {**rank, whose: ranks, what: [item.hex() for item in items]}
        for at, rank, whose, what, cases in steps
        for name, error, ranks, items in cases
    ]


def contents() -> dict[str, Any]:
    three, four = Members("three", 3, 0, 5), Members("four", 4, 1, 3)
    many = Members("sixty-five", 65, 21, 30)
    return {
        "version": 1,
        "made_by": MADE_BY,
        "whole": [whole(three, [0, 1, 2]), whole(four, [0, 2, 3])],
        "large": [large(many, [u for u in range(65) if u % 9 != 4], 1)],
        "bad": negatives(four, [0, 2, 3]),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents(), indent=1) + "\n")
