"""Run `flhe.keys.agreement.epoch` over a Grid: the server only relays messages.

Three relays: ADVERTISE, SHARE, CONFIRM. The CONFIRMs travel with the first message of a round, and
each member verifies them before it encrypts anything. Then members agree on the keys that the
scheme declares. These are a key pair, made by the member of the lowest rank (`key_pair`), a key for
each member, with a sum known to all (`joint`), or shares of a key that no party holds
(`shared_key`). A node that falls silent ends the attempt; the next one starts over, with fresh
keys, among those that answered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Annotated, Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError, QuorumError
from flhe.keys.agreement import broadcast, joint, key_pair, shared_key
from flhe.keys.agreement.epoch import CONTRIBUTORS, advertised, announced
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope, Header
from flhe.keys.agreement.thresholds import Thresholds
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.trouble import give_up, log, most_common, reasons, warn
from flhe.training.contract import Contract
from flhe.wire.codes import explain
from flhe.wire.fields import U32, U64, As, Hash
from flhe.wire.record import Form, Record

T = TypeVar("T", bound=Hashable)
Reader = Callable[[int, ConfigRecord], Any]
"""(node, our record in its reply) -> its checked content."""

REFUSALS = (1013, 1014)
"""Codes of `flhe.wire.codes` for a node that received something wrong."""
RAISED = 2
"""Flower's code for an exception in the app; HEMod lets none through."""
NOTHING: Mapping[int, Mapping[str, Any]] = {}
NO_MOD = "its app has no HEMod: put HEMod() first in ClientApp(mods=[...])"

ATTEMPTS = 3

MIN_MEMBERS = 3
"""A sum over two reveals the other's update to each of them."""


def _unplaced(keys: list[bytes]) -> dict[int, bytes]:
    """Return members under unused negative numbers, until a node identifies itself."""
    if not all(isinstance(key, bytes) for key in keys):
        raise TypeError
    return {-1 - i: key for i, key in enumerate(keys)}


_BY_KEY = As(lambda members: sorted(set(members.values())), _unplaced, "keys that ascend")


@dataclass(frozen=True, slots=True)
class Agreed(Record):
    """The server's knowledge of an epoch: everything but its key. Stored without node ids."""

    FORM = Form("ledger's epoch", row=True)

    number: U64
    """The server's own count of epochs."""
    epoch: bytes
    """Epoch id, as the members confirmed it."""
    roster_hash: bytes
    """Roster hash that they confirmed."""
    members: Annotated[dict[int, bytes], _BY_KEY]
    """Identity key of each participating node, by node id; a member without a known node has a
    negative number."""
    confirms: tuple[bytes, ...]
    """CONFIRMs of all members, for delivery."""
    contract: Hash
    """Hash of the contract, as announced."""
    bound: Hash
    """Hash of it and of the run's config, as they signed both."""
    sites: U32
    """Members of the confirmed roster, by majority, as are `colluders` and `min_opening`. Members
    use their own copy."""
    colluders: U32
    min_opening: U32 = 0
    public: bytes = b""
    """Encoded public key of the scheme, or the members' name of the sum of their keys."""

    @property
    def publics(self) -> tuple[bytes, ...]:
        """The members' keys, by rank."""
        return tuple(sorted(self.members.values()))

    def rank(self, node: int) -> int:
        """Return the rank of a node: the place of its key among the members' keys."""
        return self.publics.index(self.members[node])


def agree(
    grid: StreamGrid,
    nodes: Iterable[int],
    contract: Contract,
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

    Raises QuorumError: too few answered, or every attempt was broken off; the text names the nodes.
    """
    present = list(nodes)
    trouble: dict[int, str] = {}
    for attempt in range(ATTEMPTS):
        try:
            return _Attempt(grid, contract, run_id, number + attempt, timeout, trouble).run(present)
        except ProtocolError as error:
            log(WARNING, "key agreement, attempt %d: %s", attempt + 1, error)
            last = error
        present = [node for node in present if node not in trouble]
        if len(present) < MIN_MEMBERS:
            break
    raise QuorumError(f"no key was agreed on: {last}") from last


@dataclass(slots=True)
class _Attempt:
    grid: StreamGrid
    contract: Contract
    run_id: int
    number: int
    timeout: float
    trouble: dict[int, str]
    """Nodes to leave out of the next attempt, with reasons."""
    refused: set[int] = field(default_factory=set)
    """Nodes that found a fault in a stage's content."""
    members: dict[int, bytes] = field(default_factory=dict)
    """Identity keys by node, in order of rank once all are known."""
    ephemerals: dict[bytes, int] = field(default_factory=dict)
    """Node by the key that it advertises: members refuse a list with one twice."""

    def run(self, asked: list[int]) -> Agreed:
        """Run all three relays, and those of the scheme's own keys."""
        terms = self.contract.terms
        hellos = self.ask("advertise", asked, self._advertised, contract=self.contract.to_bytes())
        _outvote(hellos, self.trouble)
        members = {node: header.sender for node, (header, _) in hellos.items()}
        keys = list(members.values())
        if twice := [node for node, key in members.items() if keys.count(key) > 1]:
            self.trouble |= dict.fromkeys(twice, "another node has its identity")
            raise ProtocolError(
                f"two nodes share one identity: give each a state directory of its own; nodes {twice} "
                "are left out"
            )
        if len(members) < MIN_MEMBERS:
            nodes = "1 node" if len(members) == 1 else f"{len(members)} nodes"
            need = f"{MIN_MEMBERS} or more are needed"
            give_up(f"only {nodes} advertised a key, {need}", self.trouble)
        terms.for_cohort(len(members))  # refuses a cohort that does not fit
        warn("key agreement: node %d is left out: %s", self.trouble)
        order = sorted(members, key=members.__getitem__)
        self.members = {node: members[node] for node in order}
        first = [hellos[node][1] for node in order]
        shares = self.ask_all("share", order, self._shared, messages=first)
        second = [message for node in order for message in shares[node]]
        confirms = self.ask_all("confirm", order, self._confirmed, messages=second)
        views = {node: announced(message) for node, (message, _) in confirms.items()}
        odd, what = "it confirms other messages than most do", "confirmed different messages"
        roster_hash, epoch_id = self.same(views, odd, what)
        bounds = most_common(told for _, told in confirms.values())
        fewest = Thresholds(*bounds[:2]).min_set if terms.scheme.opened_together else 0
        if len(order) < fewest:
            few = f"{len(order)} members of a roster of {bounds[0]}"
            give_up(f"{few} answered, and {fewest} must to open a sum", self.trouble)
        log(INFO, "key agreement: %d members, epoch %s", len(order), epoch_id.hex()[:8])
        agreed = Agreed(
            self.number,
            epoch_id,
            roster_hash,
            self.members,
            tuple(confirms[node][0] for node in order),
            self.contract.hash(),
            hellos[order[0]][0].policy_hash,
            *bounds,
        )
        own = {"key-pair": self._key_pair, "joint": self._joint, "shares": self._shared_key}
        agree_on = own.get(terms.scheme.agreement)
        return agreed if agree_on is None else replace(agreed, public=agree_on(agreed, order))

    # --- sending ---

    def ask(
        self,
        stage: str,
        to: list[int],
        read: Reader,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> dict[int, Any]:
        """Send one stage to all of `to`, read the replies, record failures.

        `own` is for one node each, `fields` for all.
        """

        def content(node: int) -> RecordDict:
            record = records.stage_record(
                stage,
                federation=records.federation_name(self.run_id),
                number=self.number,
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
        """As `ask`, but all of `order` must answer."""
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
        """Clear `nodes` of blame if most of them refused; return the number of refusals."""
        refusers = self.refused & set(nodes)
        if 2 * len(refusers) <= len(nodes):
            return 0
        for node in refusers:
            self.trouble.pop(node, None)
        return len(refusers)

    def same(self, told: dict[int, T], odd: str, what: str) -> T:
        """Return the members' common answer; those that differ from most are left out next time."""
        common = most_common(told.values())
        if others := [node for node, value in told.items() if value != common]:
            self.trouble |= dict.fromkeys(others, odd)
            raise ProtocolError(f"members {what} ({reasons(self.trouble)})")
        return common

    # --- answers ---

    def _opened(self, message: bytes, stage: str, sender: bytes | None) -> Header:
        """Return a message that its sender signed for this exchange; members check the rest."""
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        expect: dict[str, int | str | bytes] = {
            "stage": stage,
            "run_id": self.run_id,
            "epoch": self.number,
        }
        envelope.verify(expect, senders=None if sender is None else [sender])
        return envelope.header

    def _advertised(self, node: int, reply: ConfigRecord) -> tuple[Header, bytes]:
        message = message_in(reply)
        header, key = self._opened(message, "advertise", None), advertised(message)
        if self.ephemerals.setdefault(key, node) != node:
            raise ProtocolError("another node advertises the same ephemeral key")
        return header, message

    def _shared(self, node: int, reply: ConfigRecord) -> list[bytes]:
        messages = records.bytes_list(reply, "envelopes")
        receivers = [self._opened(m, "share", self.members[node]).receiver for m in messages]
        keys = list(self.members.values())
        contributes = keys.index(self.members[node]) < CONTRIBUTORS
        others = [key for key in keys if key != self.members[node]]
        if sorted(receivers) != (others if contributes else []):
            raise ProtocolError("expected one SHARE to each other member")
        return messages

    def _confirmed(self, node: int, reply: ConfigRecord) -> tuple[bytes, tuple[int, ...]]:
        message = message_in(reply)
        self._opened(message, "confirm", self.members[node])
        announced(message)  # of the right form, or it is this node that is left out
        bounds = reply.get("bounds")
        if not isinstance(bounds, list) or [type(b) for b in bounds] != [int] * 3:
            raise ProtocolError("expected its roster's bounds")
        return message, tuple(bounds)  # type: ignore[arg-type]

    # --- the scheme's own keys ---

    def _scope(self, agreed: Agreed) -> broadcast.Scope:
        """Return the scope that these messages are signed for."""
        return self.run_id, self.number, agreed.epoch, agreed.bound

    def _named(self, stage: str, agreed: Agreed) -> Reader:
        """Return a reader of a member's broadcast in `stage`: its name of the key."""

        def read(node: int, reply: ConfigRecord) -> bytes:
            message, scope = message_in(reply), self._scope(agreed)
            return broadcast.announced(message, stage, self.members[node], scope)

        return read

    def _key_pair(self, agreed: Agreed, order: list[int]) -> bytes:
        """Have the scheme's key pair made and taken; return its public key."""
        first, confirms = order[0], list(agreed.confirms)

        def read(node: int, reply: ConfigRecord) -> tuple[bytes, bytes]:
            message = message_in(reply)
            public = key_pair.announced(message, self.members[node], self._scope(agreed))
            self.contract.terms.for_cohort(
                len(order), public=public
            )  # refuses keys unfit for adding
            return message, public

        made = self.ask_all(key_pair.STAGE, [first], read, confirms=confirms)
        message: bytes
        public: bytes
        message, public = made[first]
        fields: dict[str, Any] = {"confirms": confirms, "key-pair": message}
        try:
            self.ask_all("take-pair", order[1:], lambda *_: True, **fields)
        except ProtocolError:
            if refusers := self.acquit(order[1:]):
                self.trouble[first] = f"{refusers} members refuse the key pair that it made"
            raise
        log(INFO, "key agreement: a key pair was made by node %d and taken by all", first)
        return public

    def _joint(self, agreed: Agreed, order: list[int]) -> bytes:
        """Have each member's key drawn, or taken, and added; return the sum's name."""
        fields: dict[str, Any] = {"confirms": list(agreed.confirms)}

        def signed(node: int, reply: ConfigRecord) -> bytes:
            message, sender = message_in(reply), self.members[node]
            broadcast.read(message, joint.MAX_SHARE, joint.STAGE, sender, self._scope(agreed))
            return message

        if not self.contract.terms.scheme.dealt:
            drawn = self.ask_all(joint.STAGE, order, signed, **fields)
            fields["messages"] = [drawn[node] for node in order]
        return self._name(joint.SUM, agreed, order, "sum of keys", **fields)

    def _shared_key(self, agreed: Agreed, order: list[int]) -> bytes:
        """Have a key drawn that no party holds, and its shares dealt; return its name."""
        keys = {key: node for node, key in self.members.items()}
        fields: dict[str, Any] = {"confirms": list(agreed.confirms)}

        def committed(node: int, reply: ConfigRecord) -> bytes:
            self._named(shared_key.COMMIT, agreed)(node, reply)
            return message_in(reply)

        def boxes(node: int, reply: ConfigRecord) -> dict[int, bytes]:
            messages = records.bytes_list(reply, "envelopes")
            to = [Envelope.from_bytes(m, shared_key.MAX_BOX).header.receiver for m in messages]
            found = {
                keys[key]: message for key, message in zip(to, messages, strict=True) if key in keys
            }
            if len(messages) != len(order) - 1 or found.keys() != set(order) - {node}:
                raise ProtocolError("expected one KEY-REVEAL to each other member")
            return found

        told = self.ask_all(shared_key.COMMIT, order, committed, **fields)
        messages = [told[node] for node in order]
        sent = self.ask_all(shared_key.REVEAL, order, boxes, **fields, messages=messages)
        own = {n: {"messages": [sent[by][n] for by in order if by != n]} for n in order}
        return self._name(shared_key.SHARED, agreed, order, "key", own, **fields)

    def _name(
        self,
        stage: str,
        agreed: Agreed,
        order: list[int],
        what: str,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> bytes:
        """Return the members' common name of the key that they share."""
        try:
            read = self._named(stage, agreed)
            names: dict[int, bytes] = self.ask_all(stage, order, read, own, **fields)
        except ProtocolError:
            self.acquit(order)  # the faulty part's sender is unknown
            raise
        common = self.same(names, f"it has another {what} than most do", f"do not have one {what}")
        log(INFO, "key agreement: %d members have one %s", len(order), what)
        return common


def _outvote(hellos: dict[int, tuple[Header, bytes]], trouble: dict[int, str]) -> None:
    """Leave out nodes with another roster or run than most: they would share no key."""
    odd = {
        "roster_hash": "it pins another roster than most do: compare flhe-roster-hash",
        "policy_hash": "it received another contract, or config of the run, than most",
    }
    for name, reason in odd.items():
        told = {node: getattr(header, name) for node, (header, _) in hellos.items()}
        common = most_common(told.values()) if told else b""
        for node in [node for node, value in told.items() if value != common]:
            trouble[node] = reason
            del hellos[node]


def _reply_in(message: Message) -> ConfigRecord:
    """Return our record in a reply; ProtocolError with the reply's actual content."""
    if message.has_error():
        code = message.error.code
        raise ProtocolError(NO_MOD if code == RAISED else explain(code, message.error.reason))
    reply = records.find_reply(message.content)
    if reply is None:
        raise ProtocolError(NO_MOD)
    return reply


def message_in(reply: ConfigRecord) -> bytes:
    """Return the one message of a key agreement in a reply."""
    message: bytes = records.field(reply, "envelope", bytes)
    return message
