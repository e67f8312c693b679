"""Group key agreement against a server that does what it likes with the messages it carries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import AuthenticationError, FlheError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import (
    CONTRIBUTORS,
    MAX_MESSAGE,
    Advertised,
    Confirmed,
    Epoch,
    Shared,
    advertise,
    announced,
    confirm,
    finish,
    share,
)
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.pairs import pair_key, seal_to
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import MAX_MEMBERS, Member, Roster
from flhe.wire.canonical import dumps, loads

IDS = [Identity(bytes([i + 1]) * 32) for i in range(11)]
RUN = 2**64 - 3
View = list[bytes]
Server = Callable[[str, int, View], View]
"""(stage, client, honest list) -> what the server shows that client."""


def roster(size: int, collusion: int | None = None) -> Roster:
    members = tuple(Member(f"site-{i}", identity.public) for i, identity in enumerate(IDS[:size]))
    return Roster(
        members, Roster.default_collusion(size) if collusion is None else collusion, 2, ("*",)
    )


def honest(_stage: str, _client: int, messages: View) -> View:
    return messages


def federate(
    size: int, server: Server = honest, pinned: Roster | None = None, *, stored: bool = False
) -> list[Epoch | FlheError]:
    """Run the protocol; each client ends with an epoch or the error that stopped it.

    A client that stops sends nothing more. `stored`: every state goes to bytes and back.
    """
    ends: dict[int, FlheError] = {}

    def step(stage: str, states: dict, messages: View, run: Callable) -> tuple[dict, View]:
        after, outbound = {}, []
        for i, state in states.items():
            held = type(state).from_bytes(state.to_bytes(), identity=IDS[i]) if stored else state
            assert held == state
            try:
                result = run(held, server(stage, i, list(messages)))
            except FlheError as error:
                ends[i] = error
                continue
            after[i], sent = result if isinstance(result, tuple) else (result, [])
            outbound += sent if isinstance(sent, list) else [sent]
        return after, outbound

    started = [advertise(identity, RUN, 4, pinned) for identity in IDS[:size]]
    states: dict = {i: state for i, (state, _) in enumerate(started)}
    states, messages = step("advertise", states, [message for _, message in started], share)
    states, messages = step("share", states, messages, confirm)
    epochs, _ = step("confirm", states, messages, finish)
    return [epochs.get(i) or ends[i] for i in range(size)]


def assert_nobody_agrees(ends: list[Epoch | FlheError], **names: str) -> None:
    """An epoch that one member holds and another does not would lose a round, or worse."""
    assert all(isinstance(end, FlheError) for end in ends)
    for client, says in names.items():
        assert says in str(ends[int(client[1:])])


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("trust", ["pinned", "first-use"])
@pytest.mark.parametrize("stored", [False, True])
def test_all_agree(size: int, trust: str, stored: bool) -> None:
    pinned = roster(size) if trust == "pinned" else None
    shuffled: Server = lambda _stage, i, messages: messages[i:] + messages[:i]  # noqa: E731
    ends = federate(size, shuffled, pinned, stored=stored)
    epochs = [end for end in ends if isinstance(end, Epoch)]
    assert len(epochs) == size
    one = epochs[0]
    assert {(e.id, e.group_key, e.roster, e.members, e.number, e.run_id) for e in epochs} == {
        (one.id, one.group_key, one.roster, one.members, 4, RUN)
    }
    assert one.roster == (pinned or Roster.first_use(i.public for i in IDS[:size]))
    assert (len(one.id), len(one.group_key), one.size) == (16, 32, size)
    for identity, epoch in zip(IDS[:size], epochs, strict=True):
        assert epoch.members[epoch.rank] == identity.public
        assert Epoch.from_bytes(epoch.to_bytes()) == epoch
        for peer in epochs:
            if peer is not epoch:
                assert epoch.pair_keys[peer.rank] == peer.pair_keys[epoch.rank]
    assert len({key for e in epochs for key in e.pair_keys}) == size * (size - 1) // 2 + 1


def test_some_of_a_roster_are_enough() -> None:
    ends = federate(5, pinned=roster(7, collusion=1))
    assert all(isinstance(end, Epoch) and end.size == 5 for end in ends)


def test_every_epoch_has_fresh_keys() -> None:
    one, two = federate(3)[0], federate(3)[0]
    assert isinstance(one, Epoch)
    assert isinstance(two, Epoch)
    assert one.id != two.id
    assert one.group_key != two.group_key


def test_too_few() -> None:
    for end in federate(2):
        assert isinstance(end, QuorumError)
        assert "2 members announced a key, 3 are needed" in str(end)
    for end in federate(3, pinned=roster(5)):
        assert isinstance(end, QuorumError)
        assert "3 members answered, 4 are needed" in str(end)


def test_not_in_the_roster() -> None:
    with pytest.raises(ProtocolError, match="not in the roster"):
        advertise(IDS[6], RUN, 1, roster(5))


def test_a_removed_site_is_told_apart_from_a_stranger() -> None:
    before = roster(5, collusion=0)
    after = before.removed(IDS[2].public)
    with pytest.raises(ProtocolError, match="was revoked"):  # where it pins what all others pin
        advertise(IDS[2], RUN, 4, after)
    state, own = advertise(IDS[0], RUN, 4, after)
    others = [advertise(identity, RUN, 4, after)[1] for identity in (IDS[1], IDS[3])]
    old = advertise(IDS[2], RUN, 4, before)[1]
    moved = resign(IDS[2], old, payload_of(old), roster_hash=after.hash)
    for hello in (old, moved):  # it still pins the older roster, or the server helps it
        with pytest.raises(ProtocolError, match=f"{IDS[2].public.hex()[:16]} was revoked"):
            share(state, [own, *others, hello])
    stranger = resign(IDS[6], own, payload_of(old), sender=IDS[6].public)
    with pytest.raises(ProtocolError, match="not a member"):
        share(state, [own, *others, stranger])
    assert share(state, [own, *others])[0].members == tuple(
        sorted(IDS[i].public for i in (0, 1, 3))
    )


def test_those_who_pin_the_roster_before_a_removal_agree_with_nobody_after_it() -> None:
    before = roster(5, collusion=0)
    after = before.removed(IDS[2].public)
    late = advertise(IDS[1], RUN, 4, before)[1]
    state, own = advertise(IDS[0], RUN, 4, after)
    with pytest.raises(ProtocolError, match="roster_hash"):
        share(state, [own, late, advertise(IDS[3], RUN, 4, after)[1]])


def resign(identity: Identity, data: bytes, payload: bytes, **changes: object) -> bytes:
    header = replace(Envelope.from_bytes(data, MAX_MESSAGE).header, **changes)  # type: ignore[arg-type]
    return Envelope.seal(identity, header, payload).to_bytes()


def payload_of(data: bytes) -> bytes:
    return Envelope.from_bytes(data, MAX_MESSAGE).payload


def at(stage: str, change: Callable[[int, View], View]) -> Server:
    return lambda now, client, messages: change(client, messages) if now == stage else messages


def first_by(identity: Identity, messages: View) -> int:
    senders = [Envelope.from_bytes(m, MAX_MESSAGE).header.sender for m in messages]
    return senders.index(identity.public)


def test_server_swaps_an_ephemeral_key() -> None:
    def swap(client: int, messages: View) -> View:
        if client != 1:
            body = Envelope.from_bytes(messages[1], MAX_MESSAGE)
            fake = replace(body, payload=dumps([b"\x09" + bytes(31), bytes(32)]))
            messages[1] = fake.to_bytes()
        return messages

    ends = federate(3, at("advertise", swap))
    assert_nobody_agrees(ends, c0="signature", c2="signature", c1="SHARE messages")


def test_server_puts_its_own_member_into_a_roster() -> None:
    def add(_client: int, messages: View) -> View:
        return [*messages, advertise(IDS[6], RUN, 4, None)[1]]

    assert_nobody_agrees(federate(3, at("advertise", add), roster(3)), c0="roster_hash")

    def add_well(_client: int, messages: View) -> View:
        return [
            *messages,
            resign(IDS[6], messages[0], payload_of(messages[0]), sender=IDS[6].public),
        ]

    assert_nobody_agrees(federate(3, at("advertise", add_well), roster(3)), c0="not a member")


def begun(size: int) -> tuple[list[tuple[Advertised, bytes]], View, list[tuple[Shared, View]]]:
    """So many members after SHARE, and what they announced before it."""
    states = [advertise(identity, RUN, 4, None) for identity in IDS[:size]]
    hello = [message for _, message in states]
    return states, hello, [share(state, hello) for state, _ in states]


def flip_last(message: bytes) -> bytes:
    return message[:-1] + bytes([message[-1] ^ 1])


def test_own_advertise_missing_or_changed() -> None:
    def drop_own(client: int, messages: View) -> View:
        return [m for i, m in enumerate(messages) if i != client] + [flip_last(messages[client])]

    ends = federate(5, at("advertise", drop_own))
    assert_nobody_agrees(ends, c0="own ADVERTISE", c4="own ADVERTISE")
    state, _ = advertise(IDS[0], RUN, 4, None)
    others = [advertise(identity, RUN, 4, None)[1] for identity in IDS]  # an older own one is in
    with pytest.raises(AuthenticationError, match="own ADVERTISE"):
        share(state, others)


@pytest.mark.parametrize(("run_id", "number", "says"), [(RUN - 1, 4, "run_id"), (RUN, 3, "epoch")])
def test_server_replays_an_old_advertise(run_id: int, number: int, says: str) -> None:
    pinned = roster(3)
    old = advertise(IDS[1], run_id, number, pinned)[1]

    def replay(client: int, messages: View) -> View:
        return messages if client == 1 else [messages[0], old, messages[2]]

    ends = federate(3, at("advertise", replay), pinned)
    assert_nobody_agrees(ends, c0=f"{says} is", c2=f"{says} is")


def test_first_use_binds_the_run() -> None:
    old = advertise(IDS[1], RUN - 1, 4, None)[1]
    state, own = advertise(IDS[0], RUN, 4, None)
    moved = resign(IDS[1], old, payload_of(old), run_id=RUN)
    with pytest.raises(ProtocolError, match="roster_hash"):
        share(state, [own, moved, own])


def test_server_replays_an_advertise_of_this_run_and_number() -> None:
    old = advertise(IDS[1], RUN, 4, None)[1]

    def replay(client: int, messages: View) -> View:
        return messages if client == 1 else [messages[0], old, messages[2]]

    assert_nobody_agrees(federate(3, at("advertise", replay)), c0="does not decrypt")


def test_a_member_twice() -> None:
    again = advertise(IDS[1], RUN, 4, None)[1]
    assert_nobody_agrees(
        federate(3, at("advertise", lambda _i, messages: [*messages, messages[2]])), c0="two ADV"
    )
    assert_nobody_agrees(
        federate(3, at("advertise", lambda _i, messages: [*messages, again])), c0="two ADVERTISE"
    )


def test_one_ephemeral_key_for_two_members() -> None:
    def copy(_client: int, messages: View) -> View:
        return [*messages[:2], resign(IDS[2], messages[2], payload_of(messages[1]))]

    ends = federate(3, at("advertise", copy))
    assert_nobody_agrees(ends, c0="one ephemeral key", c1="one ephemeral key", c2="own ADVERTISE")


ORDER_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31), bytes.fromhex(ORDER_8)])
def test_a_point_that_gives_no_secret(point: bytes) -> None:
    state, own = advertise(IDS[0], RUN, 4, None)
    peer = advertise(IDS[1], RUN, 4, None)[1]
    bad = resign(IDS[2], advertise(IDS[2], RUN, 4, None)[1], dumps([point, bytes(32)]))
    with pytest.raises(AuthenticationError, match=f"{IDS[2].public.hex()[:16]} gives no secret"):
        share(state, [own, peer, bad])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        dumps([]),
        dumps([bytes(31), bytes(32)]),
        dumps([bytes(32)]),
        dumps([1, 2]),
        dumps(1),
        dumps([(2**255 - 19 + 9).to_bytes(32, "little"), bytes(32)]),  # another spelling of 9
        dumps([b"\x09" + bytes(30) + b"\x80", bytes(32)]),
    ],
)
def test_an_advertise_with_another_payload(payload: bytes) -> None:
    state, own = advertise(IDS[0], RUN, 4, None)
    peer = advertise(IDS[1], RUN, 4, None)[1]
    bad = resign(IDS[2], advertise(IDS[2], RUN, 4, None)[1], payload)
    with pytest.raises(ProtocolError, match=r"ADVERTISE|ephemeral"):
        share(state, [own, peer, bad])


def test_server_splits_the_view() -> None:
    def split(client: int, messages: View) -> View:
        return messages[:4] if client < 4 else messages

    ends = federate(5, at("advertise", split))
    assert_nobody_agrees(ends)

    fake = advertise(IDS[5], RUN, 4, None)[1], advertise(IDS[5], RUN, 4, None)[1]

    def two_faced(client: int, messages: View) -> View:  # a member who colludes with the server
        return [*messages, fake[client % 2]]

    assert_nobody_agrees(federate(5, at("advertise", two_faced)))


def test_server_drops_repeats_or_moves_a_share() -> None:
    drop: Server = at("share", lambda i, messages: messages[1:] if i == 2 else messages)
    assert_nobody_agrees(federate(3, drop), c2="5 SHARE messages, 6 are needed", c0="CONFIRM")
    repeat: Server = at("share", lambda i, messages: [*messages[1:], messages[-1]])
    assert_nobody_agrees(federate(3, repeat), c0="two SHARE messages of one pair")
    more: Server = at("share", lambda i, messages: [*messages, messages[-1]])
    assert_nobody_agrees(federate(3, more), c0="7 SHARE messages")


def test_a_share_by_a_stranger_or_to_one() -> None:
    def stranger(_client: int, messages: View) -> View:
        fake = resign(IDS[6], messages[0], payload_of(messages[0]), sender=IDS[6].public)
        return [fake, *messages[1:]]

    assert_nobody_agrees(federate(3, at("share", stranger)), c1="not between two members")
    for target in (b"", IDS[6].public, IDS[0].public):

        def sent_to(_client: int, messages: View, target: bytes = target) -> View:
            return [resign(IDS[0], messages[0], b"", receiver=target), *messages[1:]]

        assert_nobody_agrees(federate(3, at("share", sent_to)), c1="not between two members")


def test_own_share_changed_between_two_others() -> None:
    """Signed by the member itself, in another run of the step: only the sender can tell."""
    states, hello, first = begun(3)
    again = share(states[0][0], hello)[1]
    mixed = [again[0], *first[0][1][1:], *first[1][1], *first[2][1]]
    with pytest.raises(AuthenticationError, match="own SHARE"):
        confirm(first[0][0], mixed)


def test_a_share_of_another_epoch() -> None:
    _, _, first = begun(3)
    later = [advertise(identity, RUN, 5, None) for identity in IDS[:3]]
    old = [share(state, [m for _, m in later])[1] for state, _ in later]
    with pytest.raises(ProtocolError, match="epoch is 5, expected 4"):
        confirm(first[0][0], [*first[0][1], *first[1][1], *old[2]])


def test_server_shows_two_sets_of_shares() -> None:
    """A member who colludes signs two SHAREs for one peer; the server shows either to either."""
    states, hello, first = begun(4)
    again = share(states[3][0], hello)[1]
    honest_part = [m for _, messages in first[:3] for m in messages]
    to_one, to_other = [*honest_part, *first[3][1]], [*honest_part, *again]
    done = [confirm(first[i][0], to_one if i else to_other) for i in range(3)]
    colluder = confirm(first[3][0], to_one)
    confirms = [message for _, message in (*done, colluder)]
    for state, _ in done:
        with pytest.raises(AuthenticationError, match="saw other messages"):
            finish(state, confirms)


def test_a_member_who_gives_each_peer_another_secret() -> None:
    """T2 is the same for all, the keys are not: only the HMAC shows it."""
    states, hello, first = begun(3)
    again = share(states[2][0], hello)[1]
    shares = [*first[0][1], *first[1][1], first[2][1][0], again[1]]
    done = [confirm(first[i][0], shares) for i in range(2)]
    sent_by_two = [first[2][1][0], again[1]]
    two = replace(first[2][0], sent=share_hash(sent_by_two))
    confirms = [message for _, message in (*done, confirm(two, shares))]
    for state, _ in done:
        with pytest.raises(AuthenticationError, match="holds another key"):
            finish(state, confirms)


def share_hash(messages: View) -> bytes:
    from flhe.keys.agreement.epoch import _hash

    return _hash("sent", messages)


def test_a_share_to_us_is_signed_and_sized() -> None:
    states = [advertise(identity, RUN, 4, None) for identity in IDS[:3]]
    first = [share(state, [message for _, message in states]) for state, _ in states]
    shares = [m for _, messages in first for m in messages]
    (me, peer), rest = (first[0][0], first[1][0]), shares
    i = next(
        i
        for i, message in enumerate(shares)
        if (head := Envelope.from_bytes(message, MAX_MESSAGE).header).sender == IDS[1].public
        and head.receiver == IDS[0].public
    )
    sent = Envelope.from_bytes(shares[i], MAX_MESSAGE)
    unsigned = replace(sent, signature=bytes(64)).to_bytes()
    with pytest.raises(AuthenticationError, match="signature"):
        confirm(me, [*rest[:i], unsigned, *rest[i + 1 :]])
    key = peer.pair_keys[peer.members.index(IDS[0].public)]
    for size in (0, 31, 64):
        payload = seal_to(key, sent.header, bytes(size))
        odd = Envelope.seal(IDS[1], sent.header, payload).to_bytes()
        with pytest.raises(ProtocolError, match="must be 32 bytes"):
            confirm(me, [*rest[:i], odd, *rest[i + 1 :]])


def test_pair_keys_are_bound() -> None:
    def key(
        mine: int = 1, theirs: int = 2, t1: bytes = b"t" * 32, scope: tuple[int, bytes] = (1, b"r")
    ) -> bytes:
        secret, other = (
            bytes([mine]) * 32,
            X25519PrivateKey.from_private_bytes(bytes([theirs]) * 32),
        )
        pair = (bytes([mine]) * 32, bytes([theirs]) * 32)
        return pair_key(secret, other.public_key().public_bytes_raw(), pair, t1, scope)

    assert key(1, 2) == key(2, 1)
    keys = {key(), key(1, 3), key(t1=b"T" * 32), key(scope=(2, b"r")), key(scope=(1, b"R"))}
    assert len(keys) == 5


def test_confirms() -> None:
    _, _, first = begun(3)
    shares = [m for _, messages in first for m in messages]
    done = [confirm(state, shares) for state, _ in first]
    state, good = done[0][0], [message for _, message in done]
    assert isinstance(finish(state, good[::-1]), Epoch)

    def says(text: str, confirms: View) -> None:
        with pytest.raises(ProtocolError, match=text):
            finish(state, confirms)

    says("2 CONFIRM messages, all 3 members", good[:2])
    says("4 CONFIRM messages", [*good, good[0]])
    says("two CONFIRM messages", [good[0], good[1], good[1]])
    says("own CONFIRM", [good[1], good[1], good[2]])
    says("own CONFIRM", [resign(IDS[0], good[0], b""), good[1], good[2]])
    name = state.roster.name(IDS[1].public)
    t2, mac = loads(payload_of(good[1]), 100, "test")
    mine = loads(payload_of(good[0]), 100, "test")[1]
    other = [good[0], resign(IDS[1], good[1], dumps([bytes(32), mac])), good[2]]
    says(f"{name} saw other messages", other)
    for wrong in (bytes(32), mine):  # no HMAC, and one reflected
        other = [good[0], resign(IDS[1], good[1], dumps([t2, wrong])), good[2]]
        says(f"{name} holds another key", other)
    stranger = resign(IDS[6], good[1], payload_of(good[1]), sender=IDS[6].public)
    says("not a member", [good[0], stranger, good[2]])
    says("round is 1", [good[0], resign(IDS[1], good[1], payload_of(good[1]), round=1), good[2]])


def test_a_relay_knows_which_epoch_is_spoken_of() -> None:
    def run() -> tuple[list[Confirmed], View]:
        begun = [advertise(identity, RUN, 4, None) for identity in IDS[:3]]
        shared = [share(state, [m for _, m in begun]) for state, _ in begun]
        done = [confirm(state, [m for _, ms in shared for m in ms]) for state, _ in shared]
        return [state for state, _ in done], [message for _, message in done]

    (states, confirms), (_, others) = run(), run()
    epoch = finish(states[0], confirms)
    assert announced(confirms) == (epoch.roster.hash, epoch.id)
    for mixed in ([*confirms[:2], others[2]], []):
        with pytest.raises(ProtocolError, match="different messages"):
            announced(mixed)


def test_lists_and_messages_are_bounded_before_parsing() -> None:
    state, own = advertise(IDS[0], RUN, 4, None)
    with pytest.raises(ProtocolError, match="at most 1024"):
        share(state, [own] * (MAX_MEMBERS + 1))
    with pytest.raises(ProtocolError, match=f"at most {MAX_MESSAGE}"):
        share(state, [own, bytes(MAX_MESSAGE + 1)])


# --- groups larger than the number of contributors ---


def shared(size: int) -> tuple[list[Identity], list[tuple[Shared, View]]]:
    """The first so many members by rank, after SHARE."""
    members = sorted(IDS[:size], key=lambda identity: identity.public)
    begun = [advertise(identity, RUN, 4, None) for identity in members]
    hello = [message for _, message in begun]
    return members, [share(state, hello) for state, _ in begun]


@pytest.mark.parametrize("size", [CONTRIBUTORS - 1, CONTRIBUTORS, CONTRIBUTORS + 1, len(IDS)])
@pytest.mark.parametrize("stored", [False, True])
def test_the_first_members_contribute_and_all_agree(size: int, stored: bool) -> None:
    members, first = shared(size)
    assert [len(sent) for _, sent in first] == [
        (size - 1) * (rank < CONTRIBUTORS) for rank in range(size)
    ]
    for rank, (state, sent) in enumerate(first):
        heads = [Envelope.from_bytes(message, MAX_MESSAGE).header for message in sent]
        others = {m.public for m in members if m is not members[rank]}
        assert {head.receiver for head in heads} == (others if rank < CONTRIBUTORS else set())
        assert {head.sender for head in heads} <= {members[rank].public}
        assert state.members == tuple(m.public for m in members)
    ends = federate(size, stored=stored)
    epochs = [end for end in ends if isinstance(end, Epoch)]
    assert len(epochs) == size
    assert len({(e.id, e.group_key, e.members) for e in epochs}) == 1
    assert len({key for e in epochs for key in e.pair_keys}) == size * (size - 1) // 2 + 1


@pytest.mark.parametrize("size", [3, CONTRIBUTORS, CONTRIBUTORS + 1, len(IDS)])
def test_the_group_key_is_of_the_contributions_and_of_all_messages(size: int) -> None:
    """HKDF over the first members' random bytes in order of rank, salted with the transcript."""
    _, first = shared(size)
    relayed = [message for _, sent in first for message in sent]
    done = [confirm(state, relayed) for state, _ in first]
    epoch = finish(done[-1][0], [message for _, message in done])
    digests = []
    for message in relayed:
        head = Envelope.from_bytes(message, MAX_MESSAGE).header
        digests.append((head.sender, head.receiver, hashlib.sha256(message).digest()))
    t1 = first[0][0].t1
    t2 = hashlib.sha256(dumps(["flhe/v1/t2", t1, [d for *_, d in sorted(digests)]])).digest()
    secret = b"".join(state.contribution for state, _ in first[:CONTRIBUTORS])
    info = dumps(["flhe/v1/group", RUN, epoch.roster.hash, 4])
    assert epoch.group_key == HKDF(SHA256(), 32, salt=t2, info=info).derive(secret)
    assert epoch.id == hashlib.sha256(dumps(["flhe/v1/epoch-id", t2])).digest()[:16]


def test_who_contributes_nothing_still_makes_the_key_fresh() -> None:
    """Its nonce is in T1, which salts every pair key, and so in T2."""
    members, first = shared(CONTRIBUTORS + 1)
    assert first[-1][1] == []
    begun = [advertise(identity, RUN, 4, None) for identity in members]
    hello = [message for _, message in begun]
    last = advertise(members[-1], RUN, 4, None)[1]
    state = begun[0][0]
    one, two = share(state, hello)[0], share(state, [*hello[:-1], last])[0]
    assert one.t1 != two.t1
    for mine, other in zip(one.pair_keys[1:], two.pair_keys[1:], strict=True):
        assert mine != other


def test_a_share_by_who_contributes_nothing_is_refused() -> None:
    members, first = shared(CONTRIBUTORS + 1)
    last = len(members) - 1
    state = first[last][0]
    relayed = [message for _, sent in first for message in sent]
    head = replace(
        Envelope.from_bytes(relayed[0], MAX_MESSAGE).header,
        sender=members[last].public,
        receiver=members[1].public,
    )
    key = state.pair_keys[1]
    extra = Envelope.seal(members[last], head, seal_to(key, head, bytes(32))).to_bytes()
    count, need = CONTRIBUTORS * last + 1, CONTRIBUTORS * last
    for reader in (0, 1, last):
        with pytest.raises(ProtocolError, match=f"{count} SHARE messages, {need} are needed"):
            confirm(first[reader][0], [*relayed, extra])
        with pytest.raises(ProtocolError, match="contributes nothing"):
            confirm(first[reader][0], [*relayed[:-1], extra])


def test_a_server_that_keeps_a_contribution_back_or_changes_it_in_a_large_group() -> None:
    size = CONTRIBUTORS + 2
    drop: Server = at("share", lambda i, messages: messages[1:] if i == 2 else messages)
    need = CONTRIBUTORS * (size - 1)
    ends = federate(size, drop)
    assert_nobody_agrees(ends, c2=f"{need - 1} SHARE messages, {need} are needed", c0="CONFIRM")

    def forge(client: int, messages: View) -> View:
        """Between two members, in a place that a third one reads no secret from."""
        return [*messages[:-1], flip_last(messages[-1])] if client == 0 else messages

    assert_nobody_agrees(federate(size, at("share", forge)))


def test_a_step_run_twice_repeats_no_nonce() -> None:
    state, own = advertise(IDS[0], RUN, 4, None)
    hello = [own, *(advertise(identity, RUN, 4, None)[1] for identity in IDS[1:3])]
    one, two = share(state, hello)[1][0], share(state, hello)[1][0]
    assert payload_of(one)[:12] != payload_of(two)[:12]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["advertise", "share", "confirm"]),
    st.integers(0, 5),
    st.integers(0, 10**4),
    st.integers(1, 255),
    st.sets(st.integers(0, 2), min_size=1),
)
def test_a_changed_byte_is_never_accepted(
    stage: str, message: int, where: int, flip: int, victims: set[int]
) -> None:
    """Not by those who see the changed byte; and for ADVERTISE and SHARE, by nobody at all."""

    def tamper(client: int, messages: View) -> View:
        if client in victims:
            i = message % len(messages)
            changed = bytearray(messages[i])
            changed[where % len(changed)] ^= flip
            messages[i] = bytes(changed)
        return messages

    ends = federate(3, at(stage, tamper))
    for client, end in enumerate(ends):
        if stage != "confirm" or client in victims:
            assert isinstance(end, FlheError)


def states_of_one() -> list[Advertised | Shared | Confirmed | Epoch]:
    begun = [advertise(identity, RUN, 4, roster(3)) for identity in IDS[:3]]
    shared = [share(state, [m for _, m in begun]) for state, _ in begun]
    done = [confirm(state, [m for _, ms in shared for m in ms]) for state, _ in shared]
    epoch = finish(done[0][0], [m for _, m in done])
    return [begun[0][0], shared[0][0], done[0][0], epoch]


def reload(
    state: Advertised | Shared | Confirmed | Epoch, data: bytes, identity: Identity
) -> object:
    return (
        Epoch.from_bytes(data)
        if isinstance(state, Epoch)
        else type(state).from_bytes(data, identity=identity)
    )


def test_states_hide_their_secrets() -> None:
    for state in states_of_one():
        secrets = [getattr(state, name, b"") for name in ("secret", "contribution", "group_key")]
        secrets += getattr(state, "pair_keys", ())
        assert any(secrets)
        for secret in filter(None, secrets):
            assert repr(bytes(secret)) not in repr(state)
            assert secret in state.to_bytes()
        assert IDS[0].seed not in state.to_bytes()


def test_states_belong_to_an_identity_and_a_step() -> None:
    states = states_of_one()
    for state in states:
        if not isinstance(state, Epoch):
            with pytest.raises(ProtocolError, match="another identity"):
                reload(state, state.to_bytes(), IDS[1])
        for other in states:
            if other is not state:
                with pytest.raises(ProtocolError):
                    reload(state, other.to_bytes(), IDS[0])


STATES = states_of_one()


@pytest.mark.parametrize(
    "changes",
    [
        {"group_key": bytes(31)},
        {"id": bytes(15)},
        {"rank": 3},
        {"rank": 3, "pair_keys": (bytes(32),) * 3},
        {"rank": 0},
        {"members": ()},
        {"members": (IDS[6].public,) * 3},
        {"pair_keys": ()},
    ],
)
def test_an_epoch_that_cannot_be(changes: dict[str, object]) -> None:
    epoch = STATES[3]
    assert isinstance(epoch, Epoch)
    assert epoch.rank != changes.get("rank")
    with pytest.raises(ProtocolError, match="stored epoch"):
        replace(epoch, **changes)  # type: ignore[arg-type]


def test_an_epoch_of_another_version_is_refused() -> None:
    (epoch, *_) = federate(3)
    body = loads(epoch.to_bytes(), 1 << 20, "epoch")
    for version in (2, 4):
        with pytest.raises(ProtocolError, match=f"version {version}, this flhe reads 3"):
            Epoch.from_bytes(dumps({**body, "v": version}))
