"""SchemeKeys: how members of a new epoch come to the keys of a scheme's own, as the server sees it.

A key pair, which the member of the lowest rank makes and the others take
(`flhe.keys.agreement.key_pair`); a key for each member, of which all know the sum (`joint`); shares of
a key that nobody has (`shared_key`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from logging import INFO, getLogger
from typing import Any

from flwr.app import ConfigRecord

from flhe.errors import ProtocolError
from flhe.keys.agreement import broadcast, joint, key_pair, shared_key
from flhe.keys.agreement.messages import Envelope
from flhe.mods import records
from flhe.strategies.relay import Relay, message_in

log = getLogger("flwr").log


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
    bound: bytes
    """Hash of contract and config that they signed it for."""

    @property
    def order(self) -> list[int]:
        """Nodes in order of rank."""
        return list(self.members)

    @property
    def scope(self) -> broadcast.Scope:
        """What all messages are signed for."""
        relay = self.relay
        return relay.run_id, relay.number, self.epoch_id, self.bound

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
            message = message_in(node, reply)
            public = key_pair.announced(message, self.members[node], scope)
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
            message = message_in(node, reply)
            return broadcast.announced(message, joint.SUM, self.members[node], scope)

        if not self.relay.terms.scheme.dealt:
            drawn = self.relay.ask_all(joint.STAGE, order, message_in, **fields)
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
            message = message_in(node, reply)
            return message, broadcast.announced(message, stage, self.members[node], scope)

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
