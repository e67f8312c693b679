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
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import (
    AuthenticationError,
    ConfigError,
    ProtocolError,
    QuorumError,
    RangeError,
    ReuseError,
)
from flhe.keys import pairwise, pairwise_server
from flhe.keys.canonical import dumps, loads
from flhe.keys.graph import Graph
from flhe.keys.identity import Identity
from flhe.keys.messages import Envelope
from flhe.keys.pairs import seal_to
from flhe.keys.pairwise import Masked, Plan
from flhe.keys.pairwise_masks import apply, commitment
from flhe.keys.pairwise_messages import from_bits, read_key
from tests.keys.masking import Run, add, group, plan_for, run, vectors_for

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
        left = run(plan, vectors, gone={stage: gone}, stored=stage == "mask")
        assert not left.ends
        assert left.senders == tuple(
            r for r in range(size) if r not in gone or stage in ("set", "open")
        )
        assert left.total is not None
        assert np.array_equal(left.total, add(plan, [vectors[r] for r in left.senders]))


@settings(deadline=None, max_examples=40)
@given(st.integers(4, 8), st.booleans(), st.data())
def test_exact_for_dropouts_all_along(size: int, elements: bool, data: st.DataObject) -> None:
    plan = plan_for(size, elements=elements, length=data.draw(st.integers(1, 40)))
    spare = data.draw(
        st.lists(st.integers(0, size - 1), max_size=size - plan.threshold, unique=True)
    )
    gone: dict[str, list[int]] = {stage: [] for stage in STAGES}
    for rank in spare:
        gone[data.draw(st.sampled_from(STAGES))].append(rank)
    vectors = vectors_for(plan, seed=size)
    left = run(plan, vectors, gone=gone)
    assert left.total is not None
    assert np.array_equal(left.total, add(plan, [vectors[r] for r in left.senders]))


@pytest.mark.parametrize("degree", [None, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_too_many_dropouts_end_it_and_nothing_is_said(stage: str, degree: int | None) -> None:
    plan = plan_for(6, degree=degree)
    around = plan.graph.around(0)
    gone = [r for r in around if r != 0][: len(around) - plan.threshold + 1]
    if stage == "open":
        left = run(plan, vectors_for(plan), gone={stage: gone}, until="open")
        about = [pairwise_server.read_answer(plan, left.senders, a) for a in left.answers.values()]
        assert sum(0 in answer.owners for answer in about) < plan.threshold
        with pytest.raises(QuorumError, match="shares of a secret of rank"):
            run(plan, vectors_for(plan), gone={stage: gone})
        return
    left = run(plan, vectors_for(plan), gone={stage: gone}, until="open")
    assert isinstance(left.ends[0], QuorumError)
    assert 0 not in left.answers
    if degree is None:
        assert set(left.ends) == set(range(6)) - set(gone)
        assert not left.answers


def test_large_vectors_on_threads_are_the_same() -> None:
    length = (1 << 16) * 2 + 77
    plan = plan_for(3, length=length)
    vectors = vectors_for(plan)
    left = run(plan, vectors, until="share")
    boxes = pairwise_server.to_receivers(plan, left.boxes)
    state = left.states[1]
    one, three = (pairwise.mask(state, boxes[1], vectors[1], threads=t)[1] for t in (1, 3))
    assert np.array_equal(one, three)
    assert not np.array_equal(one, vectors[1])


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
    boxes = pairwise_server.to_receivers(plan, left.boxes)
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


def test_thresholds_come_from_the_roster() -> None:
    plan = plan_for(7, collusion=2)
    assert (plan.threshold, plan.min_set) == (5, 5)
    assert (plan_for(7, collusion=4).threshold, plan_for(7, collusion=4).min_set) == (6, 6)


# --- states ---


def test_states_hide_what_they_hold_and_belong_to_one_member_and_sum() -> None:
    plan, (identities, epochs) = plan_for(4), group(4)
    first = run(plan, vectors_for(plan), until="share")
    later = run(plan, vectors_for(plan), until="mask")
    for state, kept in (
        (first.states[0], first.states[0].seed),
        (later.states[0], later.states[0].shares[1]),
    ):
        text = repr(state)
        assert repr(bytes(kept))[2:-1] not in text
        assert kept.hex() not in text
        data = state.to_bytes()
        assert type(state).from_bytes(data, identities[0], epochs[0], plan) == state
        for who, what in ((1, plan), (0, plan_for(4, round=9))):
            with pytest.raises(ProtocolError, match="another identity or another sum"):
                type(state).from_bytes(data, identities[who], epochs[who], what)
        with pytest.raises(ProtocolError, match=r"field senders is missing"):
            pairwise.Opened.from_bytes(data, identities[0], epochs[0], plan)
    body = loads(later.states[0].to_bytes(), 1 << 20, "state")
    for shares in (
        body["shares"][:-1],
        [*body["shares"][:-1], b"short"],
        [*body["shares"][:-1], 7],
    ):
        with pytest.raises(ProtocolError, match="shares"):
            Masked.from_bytes(dumps({**body, "shares": shares}), identities[0], epochs[0], plan)


def test_secrets_go_when_they_are_used() -> None:
    plan = plan_for(4)
    first = run(plan, vectors_for(plan), until="share").states[0]
    end = run(plan, vectors_for(plan))
    assert {"secret", "seed"} <= set(type(first).__dataclass_fields__)
    assert not {"secret", "seed"} & set(Masked.__dataclass_fields__)
    assert not {"secret", "seed", "shares"} & set(type(end.states[0]).__dataclass_fields__)


def test_another_epoch_or_identity() -> None:
    plan, (identities, epochs) = plan_for(4), group(4)
    with pytest.raises(ProtocolError, match="another epoch"):
        pairwise.advertise(identities[0], replace(epochs[0], id=bytes(16)), plan)
    with pytest.raises(ProtocolError, match="identity is not"):
        pairwise.advertise(identities[1], epochs[0], plan)


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
        (AuthenticationError, "own mask-key", [key_message(plan, 0), *good.values()]),
        (QuorumError, "2 of 5", [good[a]]),
        (ProtocolError, "at most 1024", [bytes(1025)]),
    ]
    for kind, says, messages in cases:
        with pytest.raises(kind, match=says):
            pairwise.share(state, messages)
    shared, boxes = pairwise.share(state, [own, *good.values()])
    assert set(boxes) == set(near)
    assert pairwise.share(state, good.values())[0].publics == shared.publics


def test_mask_refuses() -> None:
    plan = plan_for(4)
    vectors = vectors_for(plan)
    left = run(plan, vectors, gone={"key": [3]}, until="share")
    state = left.states[0]
    boxes = pairwise_server.to_receivers(plan, left.boxes)
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
    before = vectors[0].copy()
    pairwise.mask(state, mine, vectors[0])
    assert np.array_equal(vectors[0], before)


def test_elements_beyond_the_prime_are_refused() -> None:
    plan = plan_for(3, elements=True, length=1)
    left = run(plan, vectors_for(plan), until="share")
    boxes = pairwise_server.to_receivers(plan, left.boxes)
    with pytest.raises(RangeError, match="not below"):
        pairwise.mask(left.states[0], boxes[0], np.array([Q], np.uint64))


def test_a_key_of_low_order_is_refused_by_name() -> None:
    plan = plan_for(3)
    left = run(plan, vectors_for(plan), until="share")
    boxes = pairwise_server.to_receivers(plan, left.boxes)
    state = left.states[0]
    weak = replace(state, publics=(b"", bytes(32), state.publics[2]))
    with pytest.raises(AuthenticationError, match="rank 1 gives no secret"):
        pairwise.mask(weak, boxes[0], vectors_for(plan)[0])


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
    boxes = pairwise_server.to_receivers(plan, whole.boxes)
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


def test_one_set_is_signed_and_one_answer_given() -> None:
    plan = plan_for(5)
    left = run(plan, vectors_for(plan), until="mask")
    told = statements(left)
    signed, message = pairwise.consist(left.states[0], (0, 1, 2, 3), told)
    assert pairwise.consist(signed, [0, 1, 2, 3], []) == (signed, message)
    with pytest.raises(ReuseError, match="another set"):
        pairwise.consist(signed, (0, 1, 2, 3, 4), told)
    others = [pairwise.consist(left.states[r], (0, 1, 2, 3), told)[1] for r in (1, 2)]
    opened, answer = pairwise.unmask(signed, others)
    assert pairwise.unmask(opened, []) == (opened, answer)
    assert pairwise.unmask(opened, [b"whatever"])[1] == answer
    read = pairwise_server.read_answer(plan, (0, 1, 2, 3), answer)
    shares = left.states[0].shares
    halves = [shares[r][:32] if r < 4 else shares[r][32:] for r in range(5)]
    assert read.owners == (0, 1, 2, 3, 4)
    assert [row.astype("<u8").tobytes() for row in read.shares] == halves


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
    assert pairwise.unmask(signed, [one, two])[0].senders == senders


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
    return pairwise_server.unmask_sum(plan, total, **{**known, **more})


@pytest.mark.parametrize("degree", [None, 4])
@pytest.mark.parametrize("owner", [2, 5], ids=["seed", "key"])
def test_a_wrong_share_is_named(degree: int | None, owner: int) -> None:
    plan = plan_for(6, degree=degree)
    left = run(plan, vectors_for(plan), gone={"mask": [5]}, until="open")
    liar = next(r for r in plan.graph.neighbours(owner) if r != 5)

    def lie(body: list[Any]) -> list[Any]:
        bits, about, data = body
        at = 32 * from_bits(plan, about).index(owner)
        return [bits, about, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]]

    answers = {**left.answers, liar: answer(left, plan, liar, lie)}
    with pytest.raises(ProtocolError, match=f"of rank {owner}, given by rank {liar}, is wrong"):
        finish(left, plan, list(answers.values()))
    if degree is None:  # with as many as are needed and no more, it is one of these
        few = sorted([liar, *[r for r in answers if r != liar][: plan.threshold - 1]])
        names = ", ".join(str(r) for r in few)
        with pytest.raises(
            ProtocolError, match=f"{owner} are wrong, given by some of ranks {names}"
        ):
            finish(left, plan, [answers[r] for r in few])


def test_the_server_refuses() -> None:
    plan = plan_for(5)
    left = run(plan, vectors_for(plan), gone={"mask": [4]}, until="open")
    answers = left.answers
    others = [answers[r] for r in (1, 2, 3)]
    cases: list[tuple[type[Exception], str, list[bytes], dict[str, Any]]] = [
        (QuorumError, "2 shares of a secret of rank 0, 3 are needed", others[:2], {}),
        (ProtocolError, "two messages of rank 1", [*others, others[0]], {}),
        (ProtocolError, "not a member", [answer(left, plan, 0, lambda b: b, sender=4)], {}),
        (
            ProtocolError,
            "not an answer about",
            [*others, answer(left, plan, 0, lambda b: [b"\x0f\x00", *b[1:]])],
            {},
        ),
        (
            ProtocolError,
            "not an answer about",
            [*others, answer(left, plan, 0, lambda b: b[:2])],
            {},
        ),
        *(
            (
                ProtocolError,
                "bits are needed",
                [answer(left, plan, 0, lambda b, about=about: [b[0], about, b[2]])],
                {},
            )
            for about in (b"", b"\x1f\x00", b"\x3f")
        ),
        (
            ProtocolError,
            "shares of others",
            [answer(left, plan, 0, lambda b: [b[0], b"\x0f", b[2]])],
            {},
        ),
        (
            ProtocolError,
            "given by rank 0, is wrong",
            [answer(left, plan, 0, lambda b: [b[0], b[1], b"\xff" * 160]), *others],
            {},
        ),
        (
            ProtocolError,
            "rank 4 sent no mask key",
            others,
            {"keys": {r: left.keys[r] for r in range(4)}},
        ),
        (ProtocolError, "was sent by rank 1", others, {"keys": {**left.keys, 0: left.keys[1]}}),
    ]
    for kind, says, given_answers, more in cases:
        with pytest.raises(kind, match=says):
            finish(left, plan, given_answers, **more)
    with pytest.raises(RangeError, match="the plan has"):
        pairwise_server.unmask_sum(
            plan, np.zeros(3, np.uint32), keys={}, sharers=[], senders=(), answers=[]
        )
    expected = add(plan, [vectors_for(plan)[r] for r in range(4)])
    assert np.array_equal(finish(left, plan, others), expected)


def test_answers_on_a_sparse_graph_are_about_neighbours_only() -> None:
    plan = plan_for(6, degree=4)
    left = run(plan, vectors_for(plan), until="open")
    for rank, message in left.answers.items():
        read = pairwise_server.read_answer(plan, left.senders, message)
        assert read.owners == plan.graph.around(rank)
    far = next(r for r in range(6) if r not in plan.graph.around(0))

    def stray(body: list[Any]) -> list[Any]:
        owners = sorted([*from_bits(plan, body[1])[1:], far])
        return [body[0], pairwise.to_bits(plan, owners), body[2]]

    with pytest.raises(ProtocolError, match="others than its own"):
        pairwise_server.read_answer(plan, left.senders, answer(left, plan, 0, stray))


def test_terms_come_in_any_number() -> None:
    plan = plan_for(3, length=5)
    keys = [hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(200)]
    total = np.zeros(5, np.uint32)
    apply(plan, total, ((i % 3 > 0, key) for i, key in enumerate(keys)))
    expected = np.zeros(5, np.int64)
    for i, key in enumerate(keys):
        expected += (1 if i % 3 else -1) * np.array(stream(key, plan))
    assert total.tolist() == (expected % 2**32).tolist()


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_of_low_order_is_its_senders_fault(point: bytes) -> None:
    """It gives everybody one secret: refused where it is read, before others fail to use it."""
    identities, epochs = group(4)
    plan = plan_for(4)
    state, _ = pairwise.advertise(identities[1], epochs[1], plan)
    payload = dumps([point, commitment(state.seed, plan, 1)])
    message = Envelope.seal(identities[1], plan.header(pairwise.KEY, 1), payload)
    with pytest.raises(ProtocolError, match="low order"):
        read_key(plan, message.to_bytes())
