"""The workflow that drives `flhe.keys.agreement.epoch` over a Grid: the server only carries messages.

Three relays: ADVERTISE, SHARE, CONFIRM; the CONFIRMs then travel with the first message of a round,
and each member verifies them before it encrypts anything. Where the scheme has a key pair, the
member of the lowest rank makes it then, and the others take it: two relays more,
`flhe.keys.agreement.key_pair`. Where each member has a key of its own, they add them up:
`flhe.keys.agreement.joint`. A node that falls silent on the way ends the attempt; the next one
starts over, with fresh keys, among those that answered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import INFO, WARNING, getLogger
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement import joint, key_pair, shared_key
from flhe.keys.agreement.epoch import CONTRIBUTORS, MAX_MESSAGE, announced
from flhe.keys.agreement.messages import Envelope, Header
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.trouble import give_up, most_common, reasons, warn
from flhe.training.terms import Terms
from flhe.wire.codes import explain

log = getLogger("flwr").log  # Flower's own log: one place to read a run

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SchemeKeys:
    """The keys of one epoch."""

    relay: Relay
    members: dict[int, bytes]
    """Identity keys by node, in order of rank."""
    confirms: Sequence[bytes]
    """Everyone's CONFIRM."""
    epoch_id: bytes
    """As they confirmed it."""

    @property
    def order(self) -> list[int]:
        """Nodes in order of rank."""
        return list(self.members)

    @property
    def scope(self) -> tuple[int, int, bytes, bytes]:
        """What all messages are signed for."""
        relay = self.relay
        return relay.run_id, relay.number, self.epoch_id, relay.terms.hash()

    @property
    def fields(self) -> dict[str, Any]:
        """What goes to every member."""
        return {"confirms": list(self.confirms)}

    def agreed(self) -> bytes:
        """Have members come to the keys that the scheme declares; the public one, or its name."""
        how = {"key-pair": self._key_pair, "joint": self._sum_of_keys, "shares": self._shared_key}
        agree = how.get(self.relay.terms.scheme.agreement)
        return b"" if agree is None else agree()

    def _key_pair(self) -> bytes:
        """Have the scheme's key pair made and taken; returns its public key."""
        order, scope = self.order, self.scope
        first = order[0]

        def read(node: int, reply: ConfigRecord) -> tuple[bytes, bytes]:
            message = _message(node, reply)
            public = key_pair.announced(message, self.members[node], *scope)
            self.relay.terms.for_cohort(len(order), public=public)  # what we could not add with
            return message, public

        made = self.relay.ask_all(key_pair.STAGE, [first], read, **self.fields)
        message: bytes
        public: bytes
        message, public = made[first]
        fields = {**self.fields, "key-pair": message}
        try:
            self.relay.ask_all("take-pair", order[1:], lambda *_: True, **fields)
        except ProtocolError:
            if refusers := self.relay.acquit(order[1:]):
                self.relay.trouble[first] = f"{refusers} members refuse the key pair that it made"
            raise
        log(INFO, "key agreement: a key pair was made by node %d and taken by all", first)
        return public

    def _sum_of_keys(self) -> bytes:
        """Have each member's key drawn, or taken, and all added up; returns what the sum is called."""
        order, scope, fields = self.order, self.scope, self.fields

        def named(node: int, reply: ConfigRecord) -> bytes:
            return joint.announced(_message(node, reply), self.members[node], *scope)

        if not self.relay.terms.scheme.dealt:
            drawn = self.relay.ask_all(joint.STAGE, order, _message, **fields)
            fields["messages"] = [drawn[node] for node in order]
        try:
            names: dict[int, bytes] = self.relay.ask_all(joint.SUM, order, named, **fields)
        except ProtocolError:
            self.relay.acquit(order)  # nobody can tell whose key it is
            raise
        odd, what = "it has another sum of keys than most do", "have different sums of keys"
        common = self.relay.same(names, odd, what)
        log(INFO, "key agreement: %d members have one sum of keys", len(order))
        return common

    def _shared_key(self) -> bytes:
        """Have a key drawn that nobody has, and its shares dealt; returns what it is called."""
        order, scope, fields = self.order, self.scope, self.fields
        keys = {self.members[node]: node for node in order}

        def of(stage: str, node: int, reply: ConfigRecord) -> tuple[bytes, bytes]:
            message = _message(node, reply)
            return message, shared_key.announced(message, stage, self.members[node], *scope)

        def boxes(node: int, reply: ConfigRecord) -> dict[int, bytes]:
            messages = records.bytes_list(reply, "envelopes")
            to = [Envelope.from_bytes(m, shared_key.MAX_BOX).header.receiver for m in messages]
            found = {
                keys[key]: message for key, message in zip(to, messages, strict=True) if key in keys
            }
            if len(messages) != len(order) - 1 or found.keys() != set(order) - {node}:
                raise ProtocolError("it did not send one KEY-REVEAL to each other member")
            return found

        told = self.relay.ask_all(
            shared_key.COMMIT, order, partial(of, shared_key.COMMIT), **fields
        )
        fields["messages"] = [told[node][0] for node in order]
        sent = self.relay.ask_all(shared_key.REVEAL, order, boxes, **fields)
        own = {n: {"messages": [sent[by][n] for by in order if by != n]} for n in order}
        try:
            named = self.relay.ask_all(
                shared_key.SHARED,
                order,
                partial(of, shared_key.SHARED),
                own,
                **self.fields,
            )
        except ProtocolError:
            self.relay.acquit(order)  # nobody can tell whose share it is
            raise
        names: dict[int, bytes] = {node: name for node, (_, name) in named.items()}
        common = self.relay.same(names, "it has another key than most do", "have different keys")
        log(INFO, "key agreement: %d members have shares of one key", len(order))
        return common


Reader = Callable[[int, ConfigRecord], Any]
"""(node, our record in its reply) -> what it tells, checked."""

REFUSALS = (1013, 1014)
"""Codes of `flhe.wire.codes` by which a node says that what came to it is wrong."""
RAISED = 2
"""Flower's code for an exception in the app, which HEMod lets nobody see."""
NOTHING: Mapping[int, Mapping[str, Any]] = {}
NO_MOD = "its app has no HEMod: put HEMod() first in ClientApp(mods=[...])"


@dataclass(slots=True)
class Relay:
    """One exchange of messages."""

    grid: StreamGrid
    terms: Terms
    """What the key is for."""
    run_id: int
    """The federation's id."""
    number: int
    """The server's count of agreements."""
    timeout: float
    """Seconds that each stage waits."""
    trouble: dict[int, str]
    """Which nodes to leave out of the next exchange, and why."""
    refused: set[int] = field(default_factory=set)
    """Nodes that found something wrong with what a stage brought."""

    def ask(
        self,
        stage: str,
        to: list[int],
        read: Reader,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> dict[int, Any]:
        """Send one stage to all of `to`, read the replies, note who had trouble.

        `own` is what goes to one node each, `fields` what goes to all.
        """

        def content(node: int) -> RecordDict:
            record = records.stage_record(
                stage,
                federation=records.federation_name(self.run_id),
                number=self.number,
                terms=self.terms.to_bytes(),
                **fields,
                **own.get(node, {}),
            )
            return RecordDict({records.STAGE: record})

        common = RecordDict() if own else content(0)
        messages = [Message(content(node) if own else common, node, "train") for node in to]

        def checked(node: int, message: Message) -> Any:
            if message.has_error() and message.error.code in REFUSALS:
                self.refused.add(node)
            return read(node, _reply_in(message))

        sent = self.grid.send_and_receive(messages, timeout=self.timeout)
        silent = f"no answer within {self.timeout:g} s"
        return dict(self.grid.fold(sent, self.trouble, checked, silent))

    def ask_all(
        self,
        stage: str,
        order: list[int],
        read: Reader,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> dict[int, Any]:
        """As `ask`, where all of `order` must answer."""
        before = set(self.trouble)
        replies = self.ask(stage, order, read, own, **fields)
        if missing := [node for node in order if node not in replies]:
            why = {node: self.trouble[node] for node in missing if node in self.trouble}
            raise ProtocolError(
                f"{len(missing)} of {len(order)} nodes did not answer {stage!r} ({reasons(why)})"
            )
        for node in set(self.trouble) - before:  # a late reply of an earlier exchange is no reason
            del self.trouble[node]
        return replies

    def acquit(self, nodes: list[int]) -> int:
        """Where most of `nodes` refused, it is not they who are at fault; returns how many they are."""
        refusers = self.refused & set(nodes)
        if 2 * len(refusers) <= len(nodes):
            return 0
        for node in refusers:
            self.trouble.pop(node, None)
        return len(refusers)

    def same(self, told: dict[int, T], odd: str, what: str) -> T:
        """What all members say; those that say something else than most are left out next time."""
        common = most_common(told.values())
        if others := [node for node, value in told.items() if value != common]:
            self.trouble |= dict.fromkeys(others, odd)
            raise ProtocolError(f"members {what} ({reasons(self.trouble)})")
        return common


def _reply_in(message: Message) -> ConfigRecord:
    """Our record in a reply; ProtocolError saying what there is instead."""
    if message.has_error():
        code = message.error.code
        raise ProtocolError(NO_MOD if code == RAISED else explain(code, message.error.reason))
    reply = records.find_reply(message.content)
    if reply is None:
        raise ProtocolError(NO_MOD)
    return reply


def _message(_node: int, reply: ConfigRecord) -> bytes:
    """The one message of a key agreement in a reply."""
    message: bytes = records.field(reply, "envelope", bytes)
    return message


ATTEMPTS = 3

MIN_MEMBERS = 3
"""A sum over two shows each of them the other's update."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the server knows of an epoch: everything but its key."""

    number: int
    """The server's own count of epochs."""
    epoch: bytes
    """Epoch id, as the members confirmed it."""
    roster_hash: bytes
    """Roster hash that they confirmed."""
    members: dict[int, bytes]
    """Identity key of each node that takes part, by node id; a member whose node is not known at the
    moment has a negative number in its place."""
    confirms: tuple[bytes, ...]
    """Everyone's CONFIRM, for delivery."""
    colluders: int
    """Bound on collusion of the roster that they confirmed, as most of them say, as `min_opening` is.
    Members go by their own."""
    min_opening: int = 0
    public: bytes = b""
    """Public key of the scheme, encoded; or what the members call the sum of their keys."""

    def rank(self, node: int) -> int:
        """Rank of a node: the place of its key among the members' keys."""
        return sorted(self.members.values()).index(self.members[node])


def agree(
    grid: StreamGrid,
    nodes: Iterable[int],
    terms: Terms,
    *,
    run_id: int,
    timeout: float,
    number: int = 0,
) -> Agreed:
    """Agree on an epoch among `nodes`, leaving out those that do not answer in time.

    Parameters
    ----------
    run_id : int
        The federation's id.
    timeout : float
        Seconds that each relay waits.
    number : int
        The server's count of agreements so far.

    QuorumError: Too few answered, or every attempt was broken off; the text says by whom.
    """
    present = list(nodes)
    trouble: dict[int, str] = {}
    for attempt in range(ATTEMPTS):
        try:
            return _Attempt(grid, terms, run_id, number + attempt, timeout, trouble).run(present)
        except ProtocolError as error:
            log(WARNING, "key agreement, attempt %d: %s", attempt + 1, error)
            last = error
        present = [node for node in present if node not in trouble]
        if len(present) < MIN_MEMBERS:
            break
    raise QuorumError(f"no key was agreed on: {last}") from last


@dataclass(slots=True)
class _Attempt(Relay):
    """One attempt at an epoch."""

    members: dict[int, bytes] = field(default_factory=dict)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run(self, asked: list[int]) -> Agreed:
        """All three relays."""
        hellos = self.ask("advertise", asked, self._advertised)
        _outvote(hellos, self.trouble)
        members = self.members = {node: header.sender for node, (header, _) in hellos.items()}
        if len(set(members.values())) < len(members):
            raise ProtocolError(
                "two nodes share one identity: give each a state directory of its own"
            )
        if len(members) < MIN_MEMBERS:
            nodes = "1 node" if len(members) == 1 else f"{len(members)} nodes"
            need = f"{MIN_MEMBERS} or more are needed"
            give_up(f"only {nodes} advertised a key, {need}", self.trouble)
        self.terms.for_cohort(len(members))  # refuses what so many members leave no room for
        warn("key agreement: node %d is left out: %s", self.trouble)
        order = sorted(members, key=members.__getitem__)
        first = [hellos[node][1] for node in order]
        shares = self.ask_all("share", order, self._shared, messages=first)
        second = [message for node in order for message in shares[node]]
        confirms = self.ask_all("confirm", order, self._confirmed, messages=second)
        views = {node: announced([message]) for node, message in confirms.items()}
        odd, what = "it confirms other messages than most do", "confirmed different messages"
        roster_hash, epoch_id = self.same(views, odd, what)
        third = tuple(confirms[node] for node in order)
        log(INFO, "key agreement: %d members, epoch %s", len(order), epoch_id.hex()[:8])
        by_rank = {node: members[node] for node in order}
        public = SchemeKeys(self, by_rank, third, epoch_id).agreed()
        return Agreed(
            self.number,
            epoch_id,
            roster_hash,
            by_rank,
            third,
            *most_common(self.bounds.values()),
            public,
        )

    def _opened(self, message: bytes, stage: str, sender: bytes | None) -> Header:
        """A message that its sender signed for this very exchange; members check the rest."""
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        expect: dict[str, int | str | bytes] = {
            "stage": stage,
            "run_id": self.run_id,
            "epoch": self.number,
        }
        envelope.verify(expect, senders=None if sender is None else [sender])
        return envelope.header

    def _advertised(self, _node: int, reply: ConfigRecord) -> tuple[Header, bytes]:
        message = records.field(reply, "envelope", bytes)
        return self._opened(message, "advertise", None), message

    def _shared(self, node: int, reply: ConfigRecord) -> list[bytes]:
        messages = records.bytes_list(reply, "envelopes")
        receivers = [self._opened(m, "share", self.members[node]).receiver for m in messages]
        keys = sorted(self.members.values())
        contributes = keys.index(self.members[node]) < CONTRIBUTORS
        others = [key for key in keys if key != self.members[node]]
        if sorted(receivers) != (others if contributes else []):
            raise ProtocolError("it did not send one SHARE to each other member")
        return messages

    def _confirmed(self, node: int, reply: ConfigRecord) -> bytes:
        message: bytes = records.field(reply, "envelope", bytes)
        self._opened(message, "confirm", self.members[node])
        bounds = [records.field(reply, name, int) for name in ("colluders", "min-opening")]
        self.bounds[node] = bounds[0], bounds[1]
        return message


def _outvote(hellos: dict[int, tuple[Header, bytes]], trouble: dict[int, str]) -> None:
    """Leave out nodes that pin another roster than most do: no key is agreed across two rosters."""
    hashes = [header.roster_hash for header, _ in hellos.values()]
    common = max(set(hashes), key=hashes.count, default=b"")
    for node, (header, _) in list(hellos.items()):
        if header.roster_hash != common:
            trouble[node] = "it pins another roster than most do: compare flhe-roster-hash"
            del hellos[node]
