"""Make tests/vectors/masking.json without flhe.

A second implementation of masking-key agreement, from the formulas alone: CBOR written by hand, field
elements as Python's integers, Ed25519, HKDF and ChaCha20-Poly1305 by PyCryptodome.

    python -m tests.keys.make_masking_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import Crypto
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from tests.keys.make_vectors import cbor
from tests.reference.field import Q, at
from tests.reference.field import root_of as root

FILE = pathlib.Path(__file__).parents[1] / "vectors/masking.json"
MADE_BY = (
    f"tests/keys/make_masking_vectors.py: CBOR and field by hand, PyCryptodome {Crypto.__version__}; "
    "no flhe code"
)
SUITE = "x25519-ed25519-chacha20poly1305-sha256"


def sha(*parts: Any) -> bytes:
    """What stands for anything random."""
    return hashlib.sha256(cbor(["masking", *parts])).digest()


def tape(length: int, *parts: Any) -> bytes:
    return b"".join(sha(*parts, i) for i in range(-(-length // 32)))[:length]


def words(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def packed(elements: Sequence[int]) -> bytes:
    return b"".join(x.to_bytes(8, "little") for x in elements)


def hkdf(secret: bytes, label: str, *context: Any) -> bytes:
    info = cbor(["flhe/v1/" + label, *context])
    key = HKDF(secret, 32, b"", SHA256, context=info)
    assert isinstance(key, bytes)
    return key


def box(key: bytes, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    cipher = ChaCha20_Poly1305.new(key=key, nonce=nonce)
    cipher.update(bound)
    return b"".join(cipher.encrypt_and_digest(plain))


class Members:
    """Members of one epoch, and the one round that they agree in."""

    def __init__(self, name: str, size: int, collusion: int, elements: int) -> None:
        self.name, self.size, self.collusion, self.elements = name, size, collusion, elements
        seeds = [sha(name, "identity", i) for i in range(size)]
        pairs = [(ECC.construct(curve="Ed25519", seed=seed), seed) for seed in seeds]
        self._signing = sorted(
            ((s.public_key().export_key(format="raw"), s, seed) for s, seed in pairs),
            key=lambda each: each[0],
        )
        self.publics = [public for public, _, _ in self._signing]
        self.seeds = [seed for _, _, seed in self._signing]
        self.roster = cbor(
            {
                "v": 3,
                "members": [[f"site-{i}", public] for i, public in enumerate(self.publics)],
                "collusion": collusion,
                "min_survivors": 2,
                "schemes": ["*"],
                "revoked": [],
                "limits": {},
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
        self.privacy = max(collusion, 1) if size >= 65 else self.threshold - 1
        self.packing = self.threshold - self.privacy
        self.width = -(-elements // self.packing)
        self.order = 1
        while self.order < size:
            self.order *= 2

    def pair_key(self, a: int, b: int) -> bytes:
        return b"" if a == b else sha(self.name, "pair", min(a, b), max(a, b))

    def seed(self, rank: int) -> list[int]:
        """What a member shares; the first has the greatest element in it."""
        drawn = [x % Q for x in words(tape(8 * self.elements, self.name, "seed", rank))]
        return [Q - 1, *drawn[1:]] if rank == 0 else drawn

    def random(self, rank: int) -> bytes:
        """Coefficients, then nonces."""
        need = 8 * self.width * self.privacy + 12 * (self.size - 1)
        return tape(need, self.name, "deal", rank)

    def share(self, rank: int, receiver: int) -> list[int]:
        """One value of each polynomial: secrets first, then what is random."""
        secrets, fresh = self.seed(rank), words(self.random(rank)[: 8 * self.width * self.privacy])
        assert all(x < Q for x in fresh)
        point = pow(root(self.order), receiver, Q)
        out = []
        for i in range(self.width):
            part = secrets[i * self.packing : (i + 1) * self.packing]
            part += [0] * (self.packing - len(part))
            out.append(at(part + fresh[i * self.privacy : (i + 1) * self.privacy], point))
        return out

    def box(self, rank: int, receiver: int) -> bytes:
        if rank == receiver:
            return b""
        place = 8 * self.width * self.privacy + 12 * (receiver - (receiver > rank))
        nonce = self.random(rank)[place : place + 12]
        key = hkdf(self.pair_key(rank, receiver), "kshare", self.digest, rank, receiver)
        return nonce + box(key, nonce, packed(self.share(rank, receiver)), self.digest)

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
        shares = [self.share(u, rank) for u in survivors]
        return packed([sum(column) % Q for column in zip(*shares, strict=True)])

    def salt(self, rank: int) -> bytes:
        return sha(self.name, "salt", rank)

    def answer(
        self, rank: int, survivors: list[int], *, sealed: bool, share: bytes | None = None
    ) -> bytes:
        about = hashlib.sha256(cbor(survivors)).digest()
        header = self.header("unmask", rank, about)
        payload = self.total(rank, survivors) if share is None else share
        if sealed:
            key = hkdf(self.group_key, "unmask", self.digest, rank, self.salt(rank))
            payload = self.salt(rank) + box(key, bytes(12), payload, cbor(header))
        return cbor([rank, payload, self.sign(header, payload, rank)])

    def sum(self, survivors: list[int]) -> list[int]:
        return [sum(c) % Q for c in zip(*(self.seed(u) for u in survivors), strict=True)]


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
        "own": [packed(m.share(rank, rank)).hex() for rank in ranks],
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
        "own": packed(m.share(receiver, receiver)).hex(),
        "share": m.total(receiver, survivors).hex(),
        "signature": m.consist(receiver, survivors).hex(),
        "answer_shares": {
            str(rank): m.total(rank, survivors).hex() for rank in survivors[: m.threshold]
        },
        "sum": [f"{x:016x}" for x in m.sum(survivors)],
    }


def negatives(m: Members, survivors: list[int]) -> list[dict[str, Any]]:
    """Inputs of one step each, to be refused in the group that is called like this."""
    found: list[dict[str, Any]] = []
    me, others = survivors[0], survivors[1:]
    inbox = [m.box(u, me) for u in survivors]
    signed = [m.consist(rank, survivors) for rank in survivors]
    answers = [m.answer(rank, survivors, sealed=False) for rank in survivors]
    authentication, protocol, quorum = "AuthenticationError", "ProtocolError", "QuorumError"
    shares_of = "SharesError"

    def bad(name: str, at_: str, error: str, **given: Any) -> None:
        found.append({"name": name, "group": m.name, "at": at_, "error": error, **given})

    def agree(name: str, error: str, ranks: list[int], boxes: list[bytes]) -> None:
        hexed = [b.hex() for b in boxes]
        bad(name, "agree", error, rank=me, survivors=ranks, boxes=hexed)

    def release(name: str, error: str, signers: list[int], signatures: list[bytes]) -> None:
        hexed = [s.hex() for s in signatures]
        bad(name, "release", error, rank=me, signers=signers, signatures=hexed)

    def combine(name: str, error: str, given: list[bytes]) -> None:
        bad(name, "combine", error, survivors=survivors, answers=[a.hex() for a in given])

    def changed(items: list[bytes], place: int, by: Callable[[bytes], bytes]) -> list[bytes]:
        return [by(item) if i == place else item for i, item in enumerate(items)]

    flip: Callable[[bytes], bytes] = lambda b: b[:-1] + bytes([b[-1] ^ 1])  # noqa: E731
    agree("a box with one bit changed", shares_of, survivors, changed(inbox, 1, flip))
    agree("two boxes swapped", shares_of, survivors, [inbox[0], inbox[2], inbox[1]])
    away = [b"", *(m.box(me, u) for u in others)]
    agree("own boxes given back", shares_of, survivors, away)
    agree("no box of a survivor", shares_of, survivors, changed(inbox, 1, lambda _: b""))
    agree("a box too few", protocol, survivors, inbox[:-1])
    agree("survivors out of order", protocol, survivors[::-1], inbox[::-1])
    agree("without the member itself", protocol, [u for u in range(m.size) if u != me], inbox)
    agree("too few survivors", quorum, survivors[: m.threshold - 1], inbox[: m.threshold - 1])
    release("too few signatures", quorum, survivors[: m.threshold - 1], signed[: m.threshold - 1])
    release("a signer twice", protocol, [survivors[0]] * 3, [signed[0]] * 3)
    whole_group = list(range(m.size))
    wider = [m.consist(rank, whole_group) for rank in survivors]
    release("signatures on another set", authentication, survivors, wider)
    later = [m.consist(rank, survivors, round=8) for rank in survivors]
    release("signatures of another round", authentication, survivors, later)
    shares = [m.total(rank, survivors) for rank in survivors]
    combine("too few answers", quorum, answers[: m.threshold - 1])
    combine("an answer twice", protocol, [answers[0], answers[0], answers[1]])
    combine("a share changed", authentication, changed(answers, 0, lambda a: a.replace(
        shares[0][:8], flip(shares[0][:8]))))  # fmt: skip
    beyond = (2**64 - 1).to_bytes(8, "little") + shares[0][8:]
    unreduced = m.answer(survivors[0], survivors, sealed=False, share=beyond)
    combine("no field element, well signed", protocol, [unreduced, *answers[1:]])
    sealed = [m.answer(rank, survivors, sealed=True) for rank in survivors]
    combine("sealed for the members", protocol, sealed)
    return found


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
