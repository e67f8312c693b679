"""Group key agreement against a server that does what it likes with the messages it carries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from flhe.errors import AuthenticationError, FlheError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import (
    CONTRIBUTORS,
    Epoch,
    advertise,
    announced,
    confirm,
    finish,
    share,
)
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope
from flhe.keys.agreement.pairs import seal_to
from flhe.keys.roster.roster import MAX_MEMBERS, Roster
from flhe.wire.canonical import dumps, loads
from flhe.wire.derive import hash_of
from tests.keys import agreement
from tests.keys.agreement import CONTRACT, Exchange, opened, resigned

IDS = agreement.sites(11)
RUN = 2**64 - 3
View = list[bytes]
Server = Callable[[str, int, View], View]
"""(stage, client, honest list) -> what the server shows that client."""
Change = Callable[[int, View], View]
"""The same at one stage."""
Row = tuple[str, Change, tuple[str, ...]]
"""What it does, and what the errors of the first clients say."""


def roster(size: int, collusion: int | None = None) -> Roster:
    bound = Roster.default_collusion(size) if collusion is None else collusion
    return agreement.roster_of(IDS[:size], bound)


def hello(
    i: int,
    pinned: Roster | None = None,
    run: int = RUN,
    number: int = 4,
    contract: bytes = CONTRACT,
) -> bytes:
    """Another ADVERTISE of a site."""
    return advertise(IDS[i], run, number, pinned, contract)[1]


def begun(size: int) -> Exchange:
    return agreement.exchange(IDS[:size], RUN, 4)


def federate(size: int, server: Server, pinned: Roster | None = None) -> list[Epoch | FlheError]:
    """Run the protocol; each client ends with an epoch or the error that stopped it.

    A client that stops sends nothing more.
    """
    ends: dict[int, FlheError] = {}

    def step(stage: str, states: dict, messages: View, run: Callable) -> tuple[dict, View]:
        after, outbound = {}, []
        for i, state in states.items():
            try:
                result = run(IDS[i], state, server(stage, i, list(messages)))
            except FlheError as error:
                ends[i] = error
                continue
            after[i], sent = result if isinstance(result, tuple) else (result, [])
            outbound += sent if isinstance(sent, list) else [sent]
        return after, outbound

    started = [advertise(identity, RUN, 4, pinned, CONTRACT) for identity in IDS[:size]]
    states: dict = {i: state for i, (state, _) in enumerate(started)}
    states, messages = step("advertise", states, [message for _, message in started], share)
    states, messages = step("share", states, messages, confirm)
    epochs, _ = step("confirm", states, messages, lambda _, *at: finish(*at))
    return [epochs.get(i) or ends[i] for i in range(size)]


def shuffled(_stage: str, client: int, messages: View) -> View:
    return messages[client:] + messages[:client]


SIZES = [3, 5, CONTRIBUTORS - 1, CONTRIBUTORS, CONTRIBUTORS + 1, len(IDS)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pinned", [False, True])
def test_all_agree(size: int, pinned: bool) -> None:
    ends = federate(size, shuffled, roster(size) if pinned else None)
    epochs = [end for end in ends if isinstance(end, Epoch)]
    assert len(epochs) == size
    one = epochs[0]
    assert {(e.id, e.group_key, e.roster, e.members, e.number, e.run_id) for e in epochs} == {
        (one.id, one.group_key, one.roster, one.members, 4, RUN)
    }
    first_use = Roster.first_use(i.public for i in IDS[:size])
    assert one.roster == (roster(size) if pinned else first_use)
    assert (len(one.id), len(one.group_key), one.size) == (16, 32, size)
    for identity, epoch in zip(IDS[:size], epochs, strict=True):
        assert epoch.members[epoch.rank] == identity.public
        for peer in epochs:
            if peer is not epoch:
                assert epoch.pair_keys[peer.rank] == peer.pair_keys[epoch.rank]
    assert len({key for e in epochs for key in e.pair_keys}) == size * (size - 1) // 2 + 1


def test_some_of_a_roster_are_enough_and_fewer_are_not() -> None:
    ends = federate(5, shuffled, roster(7, collusion=1))
    assert all(isinstance(end, Epoch) and end.size == 5 for end in ends)
    for size, pinned, says in (
        (2, None, "2 members announced a key, 3 are needed"),
        (3, roster(5), "3 members answered, 4 are needed"),
    ):
        for end in federate(size, shuffled, pinned):
            assert isinstance(end, QuorumError)
            assert says in str(end)


def test_a_removed_site_is_told_apart_from_a_stranger() -> None:
    before = roster(5, collusion=0)
    gone = IDS[2].public
    left = tuple(member for member in before.members if member.public != gone)
    after = replace(before, members=left, revoked=(gone,))
    with pytest.raises(ProtocolError, match="was revoked"):  # where it pins what all others pin
        advertise(IDS[2], RUN, 4, after, CONTRACT)
    with pytest.raises(ProtocolError, match="not in the roster"):
        advertise(IDS[6], RUN, 1, after, CONTRACT)
    state, own = advertise(IDS[0], RUN, 4, after, CONTRACT)
    others, old = [own, hello(1, after), hello(3, after)], hello(2, before)
    revoked = f"{IDS[2].public.hex()[:16]} was revoked"
    for message, says in (
        (old, revoked),  # it still pins the older roster, or the server helps it
        (resigned(IDS[2], old, roster_hash=after.hash), revoked),
        (resigned(IDS[6], own), "not a member"),
        (hello(4, before), "roster_hash"),
    ):
        with pytest.raises(ProtocolError, match=says):
            share(IDS[0], state, [*others, message])
    assert share(IDS[0], state, others)[0].members == tuple(IDS[i].public for i in (0, 1, 3))


# --- what a server does to messages ---


def flip_last(message: bytes) -> bytes:
    return message[:-1] + bytes([message[-1] ^ 1])


def replaced(messages: View, at: int, message: bytes) -> View:
    return [message if i == at else other for i, other in enumerate(messages)]


def swapped(client: int, messages: View) -> View:
    fake = replace(opened(messages[1]), payload=dumps([b"\x09" + bytes(31), bytes(32)]))
    return messages if client == 1 else replaced(messages, 1, fake.to_bytes())


def doubled(_client: int, messages: View) -> View:
    return replaced(messages, 2, resigned(IDS[2], messages[2], opened(messages[1]).payload))


def replayed(*old: Any) -> Change:
    return lambda client, all_: all_ if client == 1 else replaced(all_, 1, hello(1, *old))


def renamed(_client: int, messages: View) -> View:
    """A member pins other bounds, and the server writes the hash of the others' in its message."""
    odd = opened(hello(1, replace(THREE, min_survivors=3)))
    head = replace(odd.header, roster_hash=THREE.hash)
    return replaced(messages, 1, replace(odd, header=head).to_bytes())


def addressed(to: bytes) -> Change:
    return lambda _, all_: [resigned(IDS[0], all_[0], b"", receiver=to), *all_[1:]]


TWO_FACES = hello(5), hello(5)
THREE, LARGE = roster(3), CONTRIBUTORS + 2
NEED = CONTRIBUTORS * (LARGE - 1)
FIRST_USE: list[Row] = [
    ("swaps an ephemeral key", swapped, ("signature", "SHARE messages", "signature")),
    ("replays one of this epoch", replayed(), ("does not decrypt",)),
    ("moves one here", lambda _, a: [*a, hello(6, run=5)], ("run_id",)),
    ("shows a member twice", lambda _, a: [*a, a[2]], ("two ADVERTISE",)),
    ("shows two of a member", lambda _, a: [*a, hello(1)], ("two ADVERTISE",)),
    ("has one ephemeral key twice", doubled, ("one ephemeral", "one ephemeral", "own ADVERTISE")),
    ("changes an own one", lambda i, a: replaced(a, i, flip_last(a[i])), ("own ADVERTISE",) * 3),
    ("shows older own ones", lambda _, a: [hello(i) for i in range(3)], ("own ADVERTISE",) * 3),
    ("shows more than fit", lambda _, a: a * MAX_MEMBERS, ("3072 ADVERTISE messages, at most",)),
    ("sends a long one", lambda _, a: [*a, bytes(MAX_MESSAGE + 1)], (f"at most {MAX_MESSAGE}",)),
]
PINNED: list[Row] = [
    ("adds a member", lambda _, a: [*a, hello(6)], ("roster_hash",)),
    ("adds one that names it", lambda _, a: [*a, resigned(IDS[6], a[0])], ("not a member",)),
    ("has one that pins others", replayed(roster(4, 0)), ("roster_hash", "", "roster_hash")),
    ("has one with other bounds", replayed(replace(THREE, min_survivors=3)), ("roster_hash",)),
    ("writes the hash in", renamed, ("signature", "own ADVERTISE", "signature")),
    ("replays one of another run", replayed(THREE, RUN - 1), ("run_id is", "", "run_id is")),
    ("replays one of another epoch", replayed(THREE, RUN, 3), ("epoch is", "", "epoch is")),
]
SPLIT: list[Row] = [
    ("splits the view", lambda i, a: a[: 4 + (i > 3)], ()),
    ("has a member with two faces", lambda i, a: [*a, TWO_FACES[i % 2]], ()),
]
NO_PAIR = ("", "not between two members")
SHARES: list[Row] = [
    ("drops", lambda i, a: a[i == 2 :], ("CONFIRM", "CONFIRM", "5 SHARE messages, 6 are needed")),
    ("repeats", lambda _, a: [*a[1:], a[-1]], ("two SHARE messages of one pair",)),
    ("adds", lambda _, a: [*a, a[-1]], ("7 SHARE messages",)),
    ("has one by a stranger", lambda _, a: [resigned(IDS[6], a[0]), *a[1:]], NO_PAIR),
    ("has one to all", addressed(b""), NO_PAIR),
    ("has one to a stranger", addressed(IDS[6].public), NO_PAIR),
    ("has one to its sender", addressed(IDS[0].public), NO_PAIR),
]
MANY: list[Row] = [
    ("drops", lambda i, a: a[i == 2 :], ("CONFIRM", "", f"{NEED - 1} SHARE messages, {NEED}")),
    ("changes others'", lambda i, a: [*a[:-1], flip_last(a[-1])] if i == 0 else a, ()),
    ("has one of too many", lambda _, a: [*a, resigned(IDS[9], a[0])], (f"{NEED + 1} SHARE",)),
    (
        "has one of the last",
        lambda _, a: [resigned(IDS[9], a[0]), *a[1:]],
        ("contributes nothing",),
    ),
]
ATTACKS: dict[str, tuple[str, int, Roster | None, Change, tuple[str, ...]]] = {
    f"{stage} of {size}: {name}": (stage, size, pinned, change, says)
    for stage, size, pinned, rows in (
        ("advertise", 3, None, FIRST_USE),
        ("advertise", 3, THREE, PINNED),
        ("advertise", 5, None, SPLIT),
        ("share", 3, None, SHARES),
        ("share", LARGE, None, MANY),
    )
    for name, change, says in rows
}


@pytest.mark.parametrize("how", ATTACKS)
def test_what_a_server_does_to_messages(how: str) -> None:
    """Nobody agrees: an epoch that one member holds and another does not would lose a round."""
    attacked, size, pinned, change, says = ATTACKS[how]

    def server(stage: str, client: int, messages: View) -> View:
        return change(client, messages) if stage == attacked else messages

    ends = federate(size, server, pinned)
    assert all(isinstance(end, FlheError) for end in ends)
    assert all(text in str(end) for text, end in zip(says, ends, strict=False))


# --- ADVERTISE ---

ORDER_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
NO_SECRET = (bytes(32), b"\1" + bytes(31), bytes.fromhex(ORDER_8))
SPELLED = ((2**255 - 19 + 9).to_bytes(32, "little"), b"\x09" + bytes(30) + b"\x80")
"""Other spellings of 9."""


@pytest.mark.parametrize("point", [*NO_SECRET, *SPELLED])
def test_an_advertise_with_another_payload(point: bytes) -> None:
    state, own = advertise(IDS[0], RUN, 4, None, CONTRACT)
    error = AuthenticationError if point in NO_SECRET else ProtocolError
    named = f"key of {IDS[2].public.hex()[:16]} gives no secret"
    odd = resigned(IDS[2], hello(2), dumps([point, bytes(32)]))
    with pytest.raises(error, match=named if point in NO_SECRET else "ephemeral"):
        share(IDS[0], state, [own, hello(1), odd])


# --- SHARE ---


def test_the_own_share_and_those_of_others_are_of_this_epoch() -> None:
    """A member's own is compared as it was sent: another run of the step would sign it too."""
    e = begun(3)
    again = share(IDS[0], e.advertised[0], e.hellos)[1]
    with pytest.raises(AuthenticationError, match="own SHARE"):
        confirm(IDS[0], e.shared[0], [again[0], *e.shares[1:]])
    assert opened(again[0]).payload[:12] != opened(e.shares[0]).payload[:12]  # nor is a nonce
    later = agreement.exchange(IDS[:3], RUN, 5).sent[2]
    with pytest.raises(ProtocolError, match="epoch is 5, expected 4"):
        confirm(IDS[0], e.shared[0], [*e.shares[:4], *later])


def test_a_share_to_us_is_signed_and_sized() -> None:
    e = begun(3)
    to_us, key = opened(e.share(1, 0)), e.shared[1].pair_keys[0]
    sized = [
        Envelope.seal(IDS[1], to_us.header, seal_to(key, to_us.header, bytes(size)))
        for size in (0, 31, 64)
    ]
    for odd, says in (
        (replace(to_us, signature=bytes(64)), "signature"),
        (Envelope.seal(IDS[1], to_us.header, bytes(27)), "does not decrypt"),
        *((one, "must be 32 bytes") for one in sized),
    ):
        with pytest.raises(ProtocolError, match=says):
            confirm(IDS[0], e.shared[0], replaced(e.shares, 2, odd.to_bytes()))


def test_server_shows_two_sets_of_shares() -> None:
    """A member who colludes signs two SHAREs for one peer; the server shows either to either."""
    e = begun(4)
    to_other = [*e.shares[:9], *share(IDS[3], e.advertised[3], e.hellos)[1]]
    done = [confirm(IDS[i], e.shared[i], e.shares if i else to_other) for i in range(3)]
    confirms = [*(message for _, message in done), e.confirms[3]]
    for state, _ in done:
        with pytest.raises(AuthenticationError, match="saw other messages"):
            finish(state, confirms)


def test_a_member_who_gives_each_peer_another_secret() -> None:
    """T2 is the same for all, the keys are not: only the HMAC shows it."""
    e = begun(3)
    shares = [*e.shares[:5], share(IDS[2], e.advertised[2], e.hellos)[1][1]]
    done = [confirm(IDS[i], e.shared[i], shares) for i in range(2)]
    liar = replace(e.shared[2], sent=hash_of("sent", shares[4:]))
    confirms = [message for _, message in (*done, confirm(IDS[2], liar, shares))]
    for state, _ in done:
        with pytest.raises(AuthenticationError, match="holds another key"):
            finish(state, confirms)


# --- the first members contribute ---


@pytest.mark.parametrize("size", SIZES)
def test_the_first_members_contribute(size: int) -> None:
    """The key is HKDF over their random bytes in order of rank, salted with the transcript."""
    e = begun(size)
    for rank, messages in enumerate(e.sent):
        heads = [opened(message).header for message in messages]
        others = {one.public for one in IDS[:size]} - {IDS[rank].public}
        assert {head.receiver for head in heads} == (others if rank < CONTRIBUTORS else set())
        assert len(heads) == (size - 1) * (rank < CONTRIBUTORS)
        assert {head.sender for head in heads} <= {IDS[rank].public}
        assert e.shared[rank].members == tuple(one.public for one in IDS[:size])
    epoch = e.epochs[-1]
    heads = [opened(message).header for message in e.shares]
    digests = sorted(
        (head.sender, head.receiver, hashlib.sha256(message).digest())
        for head, message in zip(heads, e.shares, strict=True)
    )
    t1 = e.shared[0].t1
    t2 = hashlib.sha256(dumps(["flhe/v1/t2", t1, [d for *_, d in digests]])).digest()
    secret = b"".join(state.contribution for state in e.shared[:CONTRIBUTORS])
    info = dumps(["flhe/v1/group", RUN, epoch.roster.hash, 4])
    assert epoch.group_key == HKDF(SHA256(), 32, salt=t2, info=info).derive(secret)
    assert epoch.id == hashlib.sha256(dumps(["flhe/v1/epoch-id", t2])).digest()[:16]
    # Who contributes nothing makes keys fresh as well: its nonce is in T1.
    fresh = share(IDS[0], e.advertised[0], [*e.hellos[:-1], hello(size - 1)])[0]
    assert fresh.t1 != t1
    assert not set(fresh.pair_keys[1:]) & set(e.shared[0].pair_keys[1:])


# --- CONFIRM ---


def test_confirms() -> None:
    e = begun(3)
    state, good = e.confirmed[0], e.confirms
    name = state.roster.name(IDS[1].public)
    t2, mac = loads(opened(good[1]).payload, 100, "test")
    mine = loads(opened(good[0]).payload, 100, "test")[1]

    def second(payload: bytes | None = None, by: int = 1, **header: Any) -> View:
        return replaced(good, 1, resigned(IDS[by], good[1], payload, **header))

    for text, confirms in (
        ("2 CONFIRM messages, all 3 members", good[:2]),
        ("4 CONFIRM messages", [*good, good[0]]),
        ("two CONFIRM messages", [good[0], good[1], good[1]]),
        ("two CONFIRM messages", [good[1], good[1], good[2]]),
        ("own CONFIRM", [resigned(IDS[0], good[0], b""), good[1], good[2]]),
        (f"{name} saw other messages", second(dumps([mine, mac]))),
        (f"{name} holds another key", second(dumps([t2, mac[::-1]]))),
        (f"{name} holds another key", second(dumps([t2, mine]))),
        ("not a member", second(by=6)),
        ("round is 1", second(round=1)),
    ):
        with pytest.raises(ProtocolError, match=text):
            finish(state, confirms)
    epoch = finish(state, good[::-1])
    assert {announced(message) for message in good} == {(epoch.roster.hash, epoch.id)}


# --- states ---


E = agreement.exchange(IDS[:3], RUN, 4, THREE).epochs[0]


def test_states_hide_their_secrets() -> None:
    e = agreement.exchange(IDS[:3], RUN, 4, roster(3))
    for state in (e.advertised[0], e.shared[0], e.confirmed[0], e.epochs[0]):
        secrets = [getattr(state, name, b"") for name in ("secret", "contribution", "group_key")]
        secrets = list(filter(None, [*secrets, *getattr(state, "pair_keys", ())]))
        assert secrets
        for secret in secrets:
            assert repr(bytes(secret)) not in repr(state)


@pytest.mark.parametrize(
    "changes",
    [
        {"group_key": bytes(31)},
        {"id": bytes(15)},
        {"rank": 3},
        {"rank": 3, "pair_keys": (bytes(32),) * 3},
        {"rank": 1},
        {"members": ()},
        {"members": (IDS[6].public,) * 3},
        {"pair_keys": ()},
    ],
)
def test_an_epoch_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="stored epoch"):
        replace(E, **changes)
