"""Pairwise masking: exact sums whoever leaves, the masks by definition, and what each step refuses."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import AES
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import (
    AuthenticationError,
    ConfigError,
    ProtocolError,
    QuorumError,
    RangeError,
)
from flhe.keys.canonical import dumps, loads
from flhe.keys.identity import Identity
from flhe.keys.messages import Envelope
from flhe.keys.pairs import seal_to
from flhe.sim.variants.secagg import pairwise, server
from flhe.sim.variants.secagg.graph import Graph
from flhe.sim.variants.secagg.masks import apply
from flhe.sim.variants.secagg.messages import from_bits
from flhe.sim.variants.secagg.pairwise import Plan
from tests.keys.masking import group
from tests.sim.variants.federated import Run, add, plan_for, run, to_receivers, vectors_for

Q = 2**64 - 2**32 + 1
STAGES = ("key", "share", "mask", "set", "open")
GRAPHS = [(n, None) for n in range(3, 9)] + [(6, 3), (6, 4), (7, 4), (8, 4), (8, 5), (8, 6)]


# --- sums ---


@pytest.mark.parametrize("elements", [False, True])
@pytest.mark.parametrize(("size", "degree"), GRAPHS)
def test_exact_for_as_many_dropouts_as_promised_at_any_stage(
    size: int, degree: int | None, elements: bool
) -> None:
    plan = plan_for(size, degree=degree, elements=elements)
    vectors = vectors_for(plan)
    spare = plan.graph.holders - plan.threshold
    for stage in STAGES:
        gone = range(1, size, 2)[:spare]
        left = run(plan, vectors, gone={stage: gone})
        assert not left.ends
        assert left.senders == tuple(
            r for r in range(size) if r not in gone or stage in ("set", "open")
        )
        assert left.total is not None
        assert np.array_equal(left.total, add(plan, [vectors[r] for r in left.senders]))


@pytest.mark.parametrize("degree", [None, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_too_many_dropouts_end_it_and_nothing_is_said(stage: str, degree: int | None) -> None:
    plan = plan_for(6, degree=degree)
    around = plan.graph.around(0)
    gone = {stage: [r for r in around if r != 0][: len(around) - plan.threshold + 1]}
    left = run(plan, vectors_for(plan), gone=gone, until="open")
    if stage == "open":
        with pytest.raises(QuorumError, match="shares of a secret of rank"):
            run(plan, vectors_for(plan), gone=gone)
        return
    assert isinstance(left.ends[0], QuorumError)
    assert 0 not in left.answers
    if degree is None:
        assert set(left.ends) == set(range(6)) - set(gone[stage])
        assert not left.answers


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
    modulus = Q if elements else 2**32
    vectors = vectors_for(plan)
    left = run(plan, vectors, until="share")
    secrets = {r: left.states[r].secret for r in range(6)}
    context = (plan.run_id, plan.roster_hash, plan.hash)
    boxes = to_receivers(plan, left.boxes)
    for rank in range(6):
        state = left.states[rank]
        expected = [int(x) for x in vectors[rank]]
        terms = [(1, hkdf(state.seed, "pairwise-self", *context, rank))]
        for other in plan.graph.neighbours(rank):
            public = X25519PrivateKey.from_private_bytes(secrets[other]).public_key()
            shared = X25519PrivateKey.from_private_bytes(secrets[rank]).exchange(public)
            pair = sorted((rank, other))
            key = hkdf(shared, "pairwise-mask", *context, *pair)
            terms.append((1 if other < rank else -1, key))
        for sign, key in terms:
            expected = [
                (x + sign * m) % modulus for x, m in zip(expected, stream(key, plan), strict=True)
            ]
        _, masked = pairwise.mask(state, boxes[rank], vectors[rank])
        assert masked.tolist() == expected


def test_a_plan_binds_everything() -> None:
    """Masks differ where anything differs, so sums of different plans are noise."""
    plan = replace(plan_for(6, degree=4), min_set=4)
    others = {
        "purpose": "other",
        "run_id": 1,
        "roster_hash": bytes(32),
        "epoch": 9,
        "epoch_id": bytes(16),
        "members": tuple(reversed(plan.members)),
        "round": 4,
        "attempt": 2,
        "graph": Graph(6, 4, bytes(16)),
        "threshold": 4,
        "min_set": 5,
        "length": 8,
        "elements": True,
        "layout_hash": bytes(32),
    }
    assert set(others) == {
        f for f in Plan.__dataclass_fields__ if f != "hash" and not f.startswith("_")
    }
    hashes = {replace(plan, **{name: value}).hash for name, value in others.items()}
    assert len(hashes | {plan.hash}) == len(others) + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": 2}, "more than half of 5"),
        ({"threshold": 6}, "more than half of 5"),
        ({"threshold": 3, "graph": Graph.full(6)}, "more than half of 6"),
        ({"min_set": 2}, "min_set=2"),
        ({"min_set": 7}, "min_set=7"),
        ({"length": 0}, "length=0"),
        ({"graph": Graph.full(5)}, "a graph of 5"),
    ],
)
def test_plans_that_cannot_work(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(plan_for(6, degree=4), **change)


# --- states ---


# --- what a step refuses ---


def key_message(
    plan: Plan, sender: int, public: bytes | None = None, signer: int | None = None
) -> bytes:
    identity = group(len(plan.members))[0][sender if signer is None else signer]
    public = (
        X25519PrivateKey.generate().public_key().public_bytes_raw() if public is None else public
    )
    header = plan.header(pairwise.KEY, sender if signer is None else signer)
    message = Envelope.seal(identity, header, dumps([public, bytes(32)]))
    if signer is not None:
        message = Envelope(plan.header(pairwise.KEY, sender), message.payload, message.signature)
    return message.to_bytes()


def test_share_refuses() -> None:
    plan = plan_for(6, degree=4)
    identities, epochs = group(6)
    state, own = pairwise.advertise(identities[0], epochs[0], plan)
    near = plan.graph.neighbours(0)
    far = next(r for r in range(1, 6) if r not in near)
    good = {r: key_message(plan, r) for r in near}
    a, b = near[:2]
    stranger = Identity(bytes(32))
    foreign = Envelope.seal(
        stranger,
        replace(plan.header(pairwise.KEY, 0), sender=stranger.public),
        dumps([bytes(32), bytes(32)]),
    ).to_bytes()
    other_round = replace(plan, round=plan.round + 1)
    same = X25519PrivateKey.generate().public_key().public_bytes_raw()
    cases: list[tuple[type[Exception], str, list[bytes]]] = [
        (ProtocolError, "no neighbour", [*good.values(), key_message(plan, far)]),
        (ProtocolError, "two messages", [*good.values(), key_message(plan, a)]),
        (ProtocolError, "not a member", [*good.values(), foreign]),
        (ProtocolError, "another exchange", [key_message(other_round, a)]),
        (AuthenticationError, "signature", [key_message(plan, a, signer=b)]),
        (ProtocolError, "have one key", [key_message(plan, a, same), key_message(plan, b, same)]),
        (ProtocolError, "canonical form", [key_message(plan, a, b"\xff" * 32)]),
        (ProtocolError, "canonical form", [key_message(plan, a, bytes(31))]),
        (ProtocolError, "low order", [key_message(plan, a, bytes(32))]),
        (AuthenticationError, "own mask-key", [key_message(plan, 0), *good.values()]),
        (QuorumError, "2 of 5", [good[a]]),
        (ProtocolError, "at most 1024", [bytes(1025)]),
    ]
    for kind, says, messages in cases:
        with pytest.raises(kind, match=says):
            pairwise.share(state, messages)
    with pytest.raises(ProtocolError, match="another epoch"):
        pairwise.advertise(identities[0], replace(epochs[0], id=bytes(16)), plan)
    with pytest.raises(ProtocolError, match="identity is not"):
        pairwise.advertise(identities[1], epochs[0], plan)
    shared, boxes = pairwise.share(state, [own, *good.values()])
    assert set(boxes) == set(near)
    assert bytes(state.seed).hex() not in repr(state)
    assert repr(bytes(shared.secret))[2:-1] not in repr(shared)
    assert pairwise.share(state, good.values())[0].publics == shared.publics


def test_mask_refuses() -> None:
    plan = plan_for(4)
    vectors = vectors_for(plan)
    left = run(plan, vectors, gone={"key": [3]}, until="share")
    state = left.states[0]
    boxes = to_receivers(plan, left.boxes)
    mine, theirs = boxes[0], boxes[1]
    keys = group(4)[1][0].pair_keys

    def sealed(plain: bytes) -> bytes:
        return seal_to(keys[1], plan.header(pairwise.SHARE, 1, 0), plain)

    cases: list[tuple[type[Exception], str, dict[int, bytes]]] = [
        (ProtocolError, "rank 3, who sent no key", {**mine, 3: mine[1]}),
        (ProtocolError, "rank 9", {**mine, 9: mine[1]}),
        (ProtocolError, "rank 0", {**mine, 0: mine[1]}),
        (AuthenticationError, "does not decrypt", {**mine, 1: mine[2]}),
        (AuthenticationError, "does not decrypt", {**mine, 1: theirs[0]}),
        (
            AuthenticationError,
            "does not decrypt",
            {**mine, 1: mine[1][:-1] + bytes([mine[1][-1] ^ 1])},
        ),
        (AuthenticationError, "does not decrypt", {**mine, 1: b""}),
        (ProtocolError, "not two shares", {**mine, 1: sealed(bytes(63))}),
        (ProtocolError, "not two shares", {**mine, 1: sealed(b"\xff" * 64)}),
        (QuorumError, "2 of 4", {1: mine[1]}),
    ]
    for kind, says, given_boxes in cases:
        with pytest.raises(kind, match=says):
            pairwise.mask(state, given_boxes, vectors[0])
    for vector in (vectors[0][:-1], vectors[0].astype(np.int32), vectors[0].astype(np.uint64)):
        with pytest.raises(RangeError, match="the plan has"):
            pairwise.mask(state, mine, vector)  # type: ignore[arg-type]
    weak = replace(state, publics=(b"", bytes(32), *state.publics[2:]))
    with pytest.raises(AuthenticationError, match="rank 1 gives no secret"):
        pairwise.mask(weak, mine, vectors[0])
    before = vectors[0].copy()
    pairwise.mask(state, mine, vectors[0])
    assert np.array_equal(vectors[0], before)
    large = plan_for(3, elements=True, length=1)
    one = run(large, vectors_for(large), until="share")
    with pytest.raises(RangeError, match="not below"):
        pairwise.mask(one.states[0], to_receivers(large, one.boxes)[0], np.array([Q], np.uint64))


def test_consist_refuses() -> None:
    plan = plan_for(7, degree=4)  # threshold 3, five around each
    left = run(plan, vectors_for(plan), gone={"share": [6]}, until="mask")
    near, rank = plan.graph.neighbours(6), plan.graph.neighbours(6)[0]
    state = left.states[rank]
    told = statements(left)
    everyone = tuple(r for r in range(6))
    cases: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
        (ProtocolError, "of whom there is no share", (*everyone, 6)),
        (ProtocolError, "lacks this member", tuple(r for r in everyone if r != rank)),
        (ProtocolError, "ascend", tuple(reversed(everyone))),
        (ProtocolError, "ascend", (0, 0, 1, 2, 3, 4, 5)),
        (ProtocolError, "below 7", (*everyone, 7)),
        (ProtocolError, "below 7", (-1, *everyone)),
        (ProtocolError, "below 7", (*everyone[:-1], 5.0)),
        (ProtocolError, "below 7", tuple(range(100_000))),
        (QuorumError, "a set of 2 senders", tuple(sorted((rank, near[1])))),
        (
            QuorumError,
            "are in the set of senders",
            tuple(sorted({rank} | {r for r in range(7) if r not in plan.graph.around(rank)})),
        ),
    ]
    for kind, says, senders in cases:
        if says.startswith("are in"):
            state = replace(state, plan=replace(plan, min_set=3))
        with pytest.raises(kind, match=says):
            pairwise.consist(state, senders, told)


def statements(left: Run) -> list[bytes]:
    return [state.message for state in left.states.values()]


def test_consist_refuses_neighbours_who_did_not_mask_with_it() -> None:
    """A server that brings a member's shares to some and theirs not to it could single it out."""
    plan = plan_for(5)  # threshold 3
    identities, _ = group(5)
    whole = run(plan, vectors_for(plan), until="share")
    boxes = to_receivers(plan, whole.boxes)
    boxes[1].pop(0)  # rank 1 masks with 2, 3 and 4; rank 0 masks with it
    masked = {
        r: pairwise.mask(whole.states[r], boxes[r], vectors_for(plan)[r])[0] for r in range(5)
    }
    told = {r: state.message for r, state in masked.items()}
    with pytest.raises(ProtocolError, match="rank 1 did not mask with this member"):
        pairwise.consist(masked[0], range(5), told.values())
    with pytest.raises(ProtocolError, match="rank 0, of whom there is no share"):
        pairwise.consist(masked[1], range(5), told.values())
    pairwise.consist(masked[0], (0, 2, 3, 4), told.values())
    all_bits = pairwise.to_bits(plan, range(5))
    forged = Envelope(
        plan.header(pairwise.WITH, 1), all_bits, Envelope.from_bytes(told[2], 1024).signature
    )
    late = Envelope.seal(identities[1], replace(plan, round=9).header(pairwise.WITH, 1), all_bits)
    short = Envelope.seal(identities[1], plan.header(pairwise.WITH, 1), b"")
    cases: list[tuple[type[Exception], str, bytes | None]] = [
        (ProtocolError, "message of rank 1 is missing", None),
        (AuthenticationError, "signature", forged.to_bytes()),
        (ProtocolError, "another exchange", late.to_bytes()),
        (ProtocolError, "did not mask with", short.to_bytes()),
    ]
    for kind, says, message in cases:
        given_messages = {**told, 1: message}
        with pytest.raises(kind, match=says):
            pairwise.consist(masked[0], range(5), [m for m in given_messages.values() if m])


@given(st.sets(st.integers(0, 16)))
def test_sets_of_ranks_as_bits(ranks: set[int]) -> None:
    plan = plan_for(17)
    bits = pairwise.to_bits(plan, sorted(ranks))
    assert len(bits) == 3
    assert [i for i in range(24) if bits[i // 8] >> i % 8 & 1] == sorted(ranks)
    assert from_bits(plan, bits) == tuple(sorted(ranks))


def test_unmask_refuses() -> None:
    plan = plan_for(5)  # threshold 3
    left = run(plan, vectors_for(plan), until="mask")
    senders = (0, 1, 2, 3)
    told = statements(left)
    signed, own = pairwise.consist(left.states[0], senders, told)
    one, two = (pairwise.consist(left.states[r], senders, told)[1] for r in (1, 2))
    other_set = pairwise.consist(left.states[3], (0, 1, 2, 3, 4), told)[1]
    outside = pairwise.consist(left.states[4], (0, 1, 2, 4), told)[1]
    identities, _ = group(5)
    bits = pairwise.to_bits(plan, senders)
    late = Envelope.seal(identities[1], replace(plan, attempt=9).header(pairwise.SET, 1), bits)
    forged = Envelope(plan.header(pairwise.SET, 2), bits, Envelope.from_bytes(one, 1024).signature)
    unlike = Envelope.seal(identities[1], plan.header(pairwise.OPEN, 1), bits)
    cases: list[tuple[type[Exception], str, list[bytes]]] = [
        (QuorumError, "2 of 5", [one]),
        (QuorumError, "2 of 5", [one, own]),
        (QuorumError, "1 of 5", []),
        (ProtocolError, "two messages of rank 1", [one, one]),
        (ProtocolError, "rank 3 signed another set", [one, other_set]),
        (ProtocolError, "not a member", [one, outside]),
        (ProtocolError, "another exchange", [one, late.to_bytes()]),
        (ProtocolError, "another exchange", [one, unlike.to_bytes()]),
        (AuthenticationError, "signature", [one, forged.to_bytes()]),
    ]
    for kind, says, signatures in cases:
        with pytest.raises(kind, match=says):
            pairwise.unmask(signed, signatures)
    given = server.read_answer(plan, bits, [plan.members[0]], pairwise.unmask(signed, [one, two]))
    shares = left.states[0].shares
    assert given.owners == (0, 1, 2, 3, 4)
    assert [row.astype("<u8").tobytes() for row in given.shares] == [
        shares[r][:32] if r < 4 else shares[r][32:] for r in range(5)
    ]


# --- the server ---


def answer(left: Run, plan: Plan, rank: int, change: Any, sender: int | None = None) -> bytes:
    """The answer of `rank`, its payload changed, signed anew."""
    sender = rank if sender is None else sender
    body = loads(Envelope.from_bytes(left.answers[rank], 1 << 16).payload, 1 << 16, "answer")
    identity = group(len(plan.members))[0][sender]
    return Envelope.seal(
        identity, plan.header(pairwise.OPEN, sender), dumps(change(body))
    ).to_bytes()


def finish(left: Run, plan: Plan, answers: list[bytes], **more: Any) -> Any:
    known: dict[str, Any] = {
        "keys": left.keys,
        "sharers": list(left.boxes),
        "senders": left.senders,
        "answers": answers,
    }
    total = add(plan, [left.masked[r] for r in left.senders])
    return server.unmask_sum(plan, total, **{**known, **more})


def test_the_server_refuses() -> None:
    plan = plan_for(5)
    left = run(plan, vectors_for(plan), gone={"mask": [4]}, until="open")
    others = [left.answers[r] for r in (1, 2, 3)]

    def lie(change: Any) -> list[bytes]:
        return [answer(left, plan, 0, change), *others]

    def flipped(owner: int) -> Any:
        at = 32 * owner
        return lambda b: [*b[:2], b[2][:at] + bytes([b[2][at] ^ 1]) + b[2][at + 1 :]]

    cases: list[tuple[str, list[bytes], dict[str, Any]]] = [
        ("two messages of rank 1", [*others, others[0]], {}),
        ("not a member", [answer(left, plan, 0, lambda b: b, sender=4)], {}),
        ("not an answer about", lie(lambda b: [b"\x0f\x00", *b[1:]]), {}),
        ("not an answer about", lie(lambda b: b[:2]), {}),
        ("bits are needed", lie(lambda b: [b[0], b"", b[2]]), {}),
        ("bits are needed", lie(lambda b: [b[0], b"\x3f", b[2]]), {}),
        ("shares of others", lie(lambda b: [b[0], b"\x0f", b[2]]), {}),
        ("shares disagree", lie(flipped(2)), {}),
        ("secret of rank 2 are wrong", lie(flipped(2))[:3], {}),
        ("secret of rank 4 are wrong", lie(flipped(4))[:3], {}),
        ("rank 4 sent no mask key", others, {"keys": {r: left.keys[r] for r in range(4)}}),
        ("was sent by rank 1", others, {"keys": {**left.keys, 0: left.keys[1]}}),
    ]
    for says, answers, more in cases:
        with pytest.raises(ProtocolError, match=says):
            finish(left, plan, answers, **more)
    with pytest.raises(QuorumError, match="2 shares of a secret of rank 0, 3 are needed"):
        finish(left, plan, others[:2])
    with pytest.raises(RangeError, match="the plan has"):
        server.unmask_sum(plan, np.zeros(3, np.uint32), keys={}, sharers=[], senders=(), answers=[])
    expected = add(plan, [vectors_for(plan)[r] for r in range(4)])
    assert np.array_equal(finish(left, plan, others), expected)


def test_answers_on_a_sparse_graph_are_about_neighbours_only() -> None:
    plan = plan_for(6, degree=4)
    left = run(plan, vectors_for(plan), until="open")
    far = next(r for r in range(6) if r not in plan.graph.around(0))

    def stray(body: list[Any]) -> list[Any]:
        owners = sorted([*from_bits(plan, body[1])[1:], far])
        return [body[0], pairwise.to_bits(plan, owners), body[2]]

    with pytest.raises(ProtocolError, match="others than its own"):
        finish(left, plan, [answer(left, plan, 0, stray)])


def test_terms_come_in_any_number_and_vectors_in_any_length() -> None:
    plan = plan_for(3, length=(1 << 16) + 77)
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(70)]
    total, expected = np.zeros(plan.length, np.uint32), np.zeros(plan.length, np.uint32)
    apply(plan, total, ((i % 3 > 0, key) for i, key in enumerate(keys)))
    for i, key in enumerate(keys):
        mask = np.array(stream(key, plan), np.uint32)
        expected = expected + mask if i % 3 else expected - mask
    assert np.array_equal(total, expected)
