"""SecAgg: exact sums whoever leaves, the masks by definition, and what each step refuses."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import AES
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError, QuorumError
from flhe.keys.agreement.messages import Envelope
from flhe.wire.canonical import dumps, loads
from flhe_lab.variants.secagg import pairwise, server
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.masks import apply
from flhe_lab.variants.secagg.pairwise import from_bits, to_bits
from flhe_lab.variants.secagg.plan import Plan
from tests.keys.masking import group

# --- a group of members and a server that mask for each other in one process ---

Relayed = Mapping[int, Mapping[int, bytes]]


def relayed(plan: Plan, messages: Mapping[int, Any]) -> dict[int, dict[int, bytes]]:
    """Messages by sender, to all or by receiver -> what each sender gets of its neighbours."""
    return {
        rank: {
            other: told[rank] if isinstance(told := messages[other], dict) else told
            for other in plan.graph.neighbours(rank)
            if other in messages
        }
        for rank in messages
    }


def plan_for(
    size: int,
    *,
    degree: int | None = None,
    elements: bool = False,
    length: int = 7,
    **more: Any,
) -> Plan:
    graph = None if degree is None else Graph(size, degree, bytes(range(16)))
    epoch = group(size)[1][0]
    return Plan.of(epoch, length=length, elements=elements, graph=graph, **{"round": 3, **more})


@dataclass
class Run:
    """What a run left behind."""

    total: NDArray[Any] | None = None
    ends: dict[int, FlheError] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)
    senders: tuple[int, ...] = ()
    keys: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[int, dict[int, bytes]] = field(default_factory=dict)
    masked: dict[int, NDArray[Any]] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)


def run(
    plan: Plan,
    vectors: Mapping[int, NDArray[Any]],
    *,
    gone: Mapping[str, Collection[int]] | None = None,
    until: str = "sum",
) -> Run:
    """Run the protocol honestly; `gone` says who is not heard of any more from which message on."""
    identities, epochs = group(len(plan.members))
    gone, out = gone or {}, Run()
    left: set[int] = set()

    def step(name: str, states: dict[int, Any], work: Callable[[int, Any], tuple[Any, Any]]) -> Any:
        left.update(gone.get(name, ()))
        sent = {}
        for rank, state in states.items():
            if rank in left or rank in out.ends:
                continue
            try:
                out.states[rank], sent[rank] = work(rank, state)
            except FlheError as error:
                out.ends[rank] = error
        return sent

    everyone = dict.fromkeys(range(len(plan.members)))
    out.keys = step(
        "key", everyone, lambda r, _: pairwise.advertise(identities[r], epochs[r], plan)
    )
    keys = relayed(plan, out.keys)
    states = out.states
    out.boxes = step("share", dict(states), lambda r, s: pairwise.share(s, keys[r].values()))
    if until == "share":
        return out
    boxes = relayed(plan, out.boxes)
    out.masked = step("mask", dict(states), lambda r, s: pairwise.mask(s, boxes[r], vectors[r]))
    if until == "mask":
        return out
    out.senders = tuple(sorted(out.masked))
    told = relayed(plan, {rank: states[rank].message for rank in out.senders})
    signed = step(
        "set", dict(states), lambda r, s: pairwise.consist(s, out.senders, told[r].values())
    )
    sets = relayed(plan, signed)
    out.answers = step("open", dict(states), lambda r, s: (s, pairwise.unmask(s, sets[r].values())))
    if until == "open" or not out.masked:
        return out
    out.total = opened(plan, out)
    return out


def opened(plan: Plan, left: Run, answers: Collection[bytes] | None = None, **more: Any) -> Any:
    """What the server makes of a run."""
    known: dict[str, Any] = {
        "keys": left.keys,
        "sharers": list(left.boxes),
        "senders": left.senders,
        "answers": left.answers.values() if answers is None else answers,
    }
    total = add(plan, [left.masked[rank] for rank in left.senders])
    return server.unmask_sum(plan, total, **{**known, **more})


def modulus(plan: Plan) -> int:
    return 2**64 - 2**32 + 1 if plan.elements else 2**32


def add(plan: Plan, vectors: list[NDArray[Any]]) -> NDArray[Any]:
    """Their sum in the plan's ring, by Python's integers."""
    rows = [[int(x) for x in vector] for vector in vectors]
    sums = [sum(column) % modulus(plan) for column in zip(*rows, strict=True)]
    return np.array(sums, np.uint64 if plan.elements else np.uint32)


def vectors(plan: Plan) -> dict[int, NDArray[Any]]:
    """One vector a member, over the whole ring."""
    rng = np.random.default_rng(1)  # test data; keys and masks never come from here
    dtype = np.uint64 if plan.elements else np.uint32
    everyone = range(len(plan.members))
    return {rank: rng.integers(0, modulus(plan), plan.length, dtype=dtype) for rank in everyone}


STAGES = ("key", "share", "mask", "set", "open")
GRAPHS = [(n, None) for n in range(3, 9)] + [(6, 3), (6, 4), (7, 4), (8, 4), (8, 5), (8, 6)]


# --- sums ---


@pytest.mark.parametrize("elements", [False, True])
@pytest.mark.parametrize(("size", "degree"), GRAPHS)
def test_exact_for_as_many_dropouts_as_promised_at_any_stage(
    size: int, degree: int | None, elements: bool
) -> None:
    plan = plan_for(size, degree=degree, elements=elements)
    spare = plan.graph.holders - plan.threshold
    for stage in STAGES:
        gone = range(1, size, 2)[:spare]
        left = run(plan, vectors(plan), gone={stage: gone})
        assert not left.ends
        assert left.senders == tuple(
            r for r in range(size) if r not in gone or stage in ("set", "open")
        )
        assert np.array_equal(left.total, add(plan, [vectors(plan)[r] for r in left.senders]))


# --- the definition, to the letter ---


def hkdf(secret: bytes, label: str, *context: Any) -> bytes:
    """RFC 5869 with SHA-256, one block."""
    prk = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(prk, dumps(["flhe/v1/" + label, *context]) + b"\x01", "sha256")


def stream(key: bytes, plan: Plan) -> list[int]:
    size = 8 if plan.elements else 4
    data = AES.new(key, AES.MODE_CTR, nonce=bytes(8), initial_value=0).encrypt(
        bytes(size * plan.length)
    )
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


@pytest.mark.parametrize("elements", [False, True])
@pytest.mark.parametrize("degree", [None, 4])
def test_masks_are_what_the_protocol_says(degree: int | None, elements: bool) -> None:
    plan = plan_for(6, degree=degree, elements=elements)
    left = run(plan, vectors(plan), until="share")
    secrets = {r: left.states[r].secret for r in range(6)}
    context = (plan.run_id, plan.roster_hash, plan.hash)
    boxes = relayed(plan, left.boxes)
    for rank, state in left.states.items():
        expected = [int(x) for x in vectors(plan)[rank]]
        terms = [(1, hkdf(state.seed, "pairwise-self", *context, rank))]
        for other in plan.graph.neighbours(rank):
            public = X25519PrivateKey.from_private_bytes(secrets[other]).public_key()
            shared = X25519PrivateKey.from_private_bytes(secrets[rank]).exchange(public)
            key = hkdf(shared, "pairwise-mask", *context, *sorted((rank, other)))
            terms.append((1 if other < rank else -1, key))
        for sign, key in terms:
            mask = stream(key, plan)
            expected = [(x + sign * m) % modulus(plan) for x, m in zip(expected, mask, strict=True)]
        _, masked = pairwise.mask(state, boxes[rank], vectors(plan)[rank])
        assert masked.tolist() == expected


def test_terms_come_in_any_number_and_vectors_in_any_length() -> None:
    plan = plan_for(3, length=(1 << 16) + 77)
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(70)]
    total, expected = np.zeros(plan.length, np.uint32), np.zeros(plan.length, np.uint32)
    apply(plan, total, ((i % 3 > 0, key) for i, key in enumerate(keys)))
    for i, key in enumerate(keys):
        mask = np.array(stream(key, plan), np.uint32)
        expected = expected + mask if i % 3 else expected - mask
    assert np.array_equal(total, expected)


def test_a_plan_binds_everything() -> None:
    """Masks differ where anything differs, so sums of different plans are noise."""
    plan = plan_for(6, degree=4)
    others = {
        "run_id": 1,
        "roster_hash": bytes(32),
        "epoch": 9,
        "epoch_id": bytes(16),
        "members": tuple(reversed(plan.members)),
        "round": 4,
        "graph": Graph(6, 4, bytes(16)),
        "threshold": 4,
        "min_set": 5,
        "length": 8,
        "elements": True,
    }
    fields = {f for f in Plan.__dataclass_fields__ if f != "hash" and not f.startswith("_")}
    assert set(others) == fields
    hashes = {replace(plan, **{name: value}).hash for name, value in others.items()}
    assert len(hashes | {plan.hash}) == len(others) + 1
    for wrong in ({"threshold": 2}, {"threshold": 6}, {"graph": Graph(6, 5)}):
        with pytest.raises(ConfigError, match="more than half of"):
            replace(plan, **wrong)


# --- what a step refuses ---

Case = tuple[type[Exception], str, Any]


def refused(step: Callable[[Any], Any], cases: list[Case]) -> None:
    for kind, says, value in cases:
        with pytest.raises(kind, match=says):
            step(value)


def signed(plan: Plan, stage: str, sender: int, payload: Any, signer: int | None = None) -> bytes:
    """A member's message to all; with `signer`, by another's key."""
    payload = payload if isinstance(payload, bytes) else dumps(payload)
    signer = sender if signer is None else signer
    own = Envelope.seal(group(len(plan.members))[0][signer], plan.header(stage, signer), payload)
    return Envelope(plan.header(stage, sender), payload, own.signature).to_bytes()


def test_share_refuses() -> None:
    plan, other_round = plan_for(6, degree=4), plan_for(6, degree=4, round=9)
    identities, epochs = group(6)
    state, own = pairwise.advertise(identities[0], epochs[0], plan)
    near = plan.graph.neighbours(0)
    far = next(r for r in range(1, 6) if r not in near)
    publics = [X25519PrivateKey.generate().public_key().public_bytes_raw() for _ in plan.members]

    def key(sender: int, public: bytes = b"", of: Plan = plan, **how: Any) -> bytes:
        return signed(of, pairwise.KEY, sender, [public or publics[sender], bytes(32)], **how)

    (a, b), good = near[:2], [key(r) for r in near]
    cases: list[Case] = [
        (ProtocolError, "by one of ranks", [*good, key(far)]),
        (ProtocolError, "by one of ranks", [*good, key(a)]),
        (ProtocolError, "by one of ranks", [own, *good]),
        (ProtocolError, "another exchange", [key(a, of=other_round)]),
        (AuthenticationError, "signature", [key(a, signer=b)]),
        (ProtocolError, "have one key", [key(a, publics[0]), key(b, publics[0])]),
        (ProtocolError, "canonical form", [key(a, bytes(31))]),
        (ProtocolError, "low order", [key(a, bytes(32))]),
        (ProtocolError, "two strings", [signed(plan, pairwise.KEY, a, [publics[a]])]),
        (QuorumError, "2 of 5", [key(a)]),
        (ProtocolError, "at most 1024", [bytes(1025)]),
    ]
    refused(lambda messages: pairwise.share(state, messages), cases)
    shared, boxes = pairwise.share(state, good)
    assert set(boxes) == set(near)
    with pytest.raises(QuorumError, match="1 of 5 around this member have sent shares"):
        pairwise.mask(shared, {}, vectors(plan)[0])
    assert repr(bytes(shared.secret))[2:-1] not in repr(shared)


def test_consist_refuses() -> None:
    plan = plan_for(7, degree=4)  # threshold 3, five around each
    left = run(plan, vectors(plan), gone={"share": [6]}, until="mask")
    near, rank = plan.graph.neighbours(6), plan.graph.neighbours(6)[0]
    state = left.states[rank]
    cases: list[Case] = [
        (ProtocolError, "of whom there is no share", range(7)),
        (ProtocolError, "lacks this member", [r for r in range(6) if r != rank]),
        (ProtocolError, "ascending", [5, 4, 3, 2, 1, 0]),
        (ProtocolError, "below 7", [0, 1, 2, 3, 4, 5, 7]),
        (ProtocolError, "below 7", [-1, 0, 1, 2, 3, 4, 5]),
        (QuorumError, "a set of 2 senders", sorted((rank, near[1]))),
    ]
    refused(lambda senders: pairwise.consist(state, senders, []), cases)
    far = [r for r in range(7) if r not in plan.graph.around(rank)]
    with pytest.raises(QuorumError, match="are in the set of senders"):
        pairwise.consist(replace(state, plan=replace(plan, min_set=3)), sorted([rank, *far]), [])


def test_consist_refuses_neighbours_who_did_not_mask_with_it() -> None:
    """A server that brings a member's shares to some and theirs not to it could single it out."""
    plan, late = plan_for(5), plan_for(5, round=9)  # threshold 3
    whole = run(plan, vectors(plan), until="share")
    boxes = relayed(plan, whole.boxes)
    boxes[1].pop(0)  # rank 1 masks with 2, 3 and 4; rank 0 masks with it
    masked = {r: pairwise.mask(whole.states[r], boxes[r], vectors(plan)[r])[0] for r in range(5)}
    told, bits = {r: s.message for r, s in masked.items() if r}, to_bits(plan, range(5))
    with pytest.raises(ProtocolError, match="rank 0, of whom there is no share"):
        pairwise.consist(masked[1], range(5), [])
    pairwise.consist(masked[0], (0, 2, 3, 4), [told[r] for r in (2, 3, 4)])
    cases: list[Case] = [
        (ProtocolError, "rank 1 did not mask with this member", told[1]),
        (ProtocolError, "message of rank 1 is missing", told[2]),
        (AuthenticationError, "signature", signed(plan, pairwise.WITH, 1, bits, signer=2)),
        (ProtocolError, "another exchange", signed(late, pairwise.WITH, 1, bits)),
        (ProtocolError, "did not mask with", signed(plan, pairwise.WITH, 1, b"")),
    ]
    refused(lambda m: pairwise.consist(masked[0], range(5), {**told, 1: m}.values()), cases)


def test_unmask_refuses() -> None:
    plan, senders = plan_for(5), (0, 1, 2, 3)  # threshold 3
    left = run(plan, vectors(plan), until="mask")
    told = [left.states[rank].message for rank in senders[1:]]
    state, _ = pairwise.consist(left.states[0], senders, told)
    bits, more = (to_bits(plan, ranks) for ranks in (senders, range(5)))

    def vote(sender: int, said: bytes = bits, stage: str = pairwise.SET, **how: Any) -> bytes:
        return signed(plan, stage, sender, said, **how)

    cases: list[Case] = [
        (QuorumError, "2 of 5", [vote(1), vote(1)]),
        (ProtocolError, "rank 3 signed another set", [vote(1), vote(3, more)]),
        (ProtocolError, "by one of ranks", [vote(1), vote(4)]),
        (ProtocolError, "another exchange", [vote(1, stage=pairwise.OPEN)]),
        (AuthenticationError, "signature", [vote(2, signer=1)]),
    ]
    refused(lambda votes: pairwise.unmask(state, votes), cases)
    envelope = Envelope.from_bytes(pairwise.unmask(state, [vote(1), vote(2)]), 1 << 16)
    _, about, data = loads(envelope.payload, 1 << 16, "answer")
    shares = [left.states[0].shares[rank] for rank in from_bits(plan, about)]
    assert data == b"".join(share[32:] if r > 3 else share[:32] for r, share in enumerate(shares))


# --- the server ---


def answer(left: Run, plan: Plan, rank: int, change: Any, sender: int | None = None) -> bytes:
    """The answer of `rank`, its payload changed, signed anew."""
    sender = rank if sender is None else sender
    body = loads(Envelope.from_bytes(left.answers[rank], 1 << 16).payload, 1 << 16, "answer")
    return signed(plan, pairwise.OPEN, sender, change(body))


def test_the_server_refuses() -> None:
    plan = plan_for(5)
    left = run(plan, vectors(plan), gone={"mask": [4]}, until="open")
    others = [left.answers[r] for r in (1, 2, 3)]

    def lie(change: Any) -> list[bytes]:
        return [answer(left, plan, 0, change), *others]

    def flipped(owner: int) -> Any:
        at = 32 * owner
        return lambda b: [*b[:2], b[2][:at] + bytes([b[2][at] ^ 1]) + b[2][at + 1 :]]

    cases: list[tuple[str, list[bytes], dict[str, Any]]] = [
        ("by one of ranks", [answer(left, plan, 0, lambda b: b, sender=4)], {}),
        ("not an answer about", lie(lambda b: [b"\x0f\x00", *b[1:]]), {}),
        ("bits are needed", lie(lambda b: [b[0], b"\x3f", b[2]]), {}),
        ("shares of others", lie(lambda b: [b[0], b"\x0f", b[2]]), {}),
        ("shares disagree", lie(flipped(2)), {}),
        ("secret of rank 2 are wrong", lie(flipped(2))[:3], {}),
        ("secret of rank 4 are wrong", lie(flipped(4))[:3], {}),
        ("by one of ranks", others, {"keys": {**left.keys, 0: left.keys[1]}}),
    ]
    for says, answers, more in cases:
        with pytest.raises(ProtocolError, match=says):
            opened(plan, left, answers, **more)
    with pytest.raises(QuorumError, match="2 shares of a secret of rank 0, 3 are needed"):
        opened(plan, left, others[:2])
    expected = add(plan, [vectors(plan)[r] for r in range(4)])
    assert np.array_equal(opened(plan, left, others), expected)


def test_answers_on_a_sparse_graph_are_about_neighbours_only() -> None:
    plan = plan_for(6, degree=4)
    left = run(plan, vectors(plan), until="open")
    far = next(r for r in range(6) if r not in plan.graph.around(0))

    def stray(body: list[Any]) -> list[Any]:
        owners = sorted([*from_bits(plan, body[1])[1:], far])
        return [body[0], to_bits(plan, owners), body[2]]

    with pytest.raises(ProtocolError, match="others than its own"):
        opened(plan, left, [answer(left, plan, 0, stray)])
