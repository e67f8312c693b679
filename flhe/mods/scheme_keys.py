"""Stages by which members of a new epoch come to the keys of a scheme's own (`flhe.keys.agreement`).

One key pair for all (`key_pair`), shares of a key that nobody has (`shared_key`), or a key for each
member (`joint`). Before a member draws one of the last, once everybody has confirmed, it erases those
of the epoch before: from then on nobody here opens what was sealed for another set of senders. (Dealt
keys are for one set only.) Its model stays, and so does the update that is under way: it is encrypted
again, for those that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement import dealt, joint, key_pair, shared_key
from flhe.keys.agreement.epoch import finish
from flhe.keys.agreement.states import Confirmed, Epoch
from flhe.mods import records
from flhe.mods.app import App
from flhe.node.node import Node
from flhe.schemes.base import Agreement
from flhe.training.contract import Contract


def make_pair(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Make the pair, as the member of the lowest rank, and seal it for the others."""
    return _Begun.of(node, record, "key-pair").take(key_pair.make)


def take_pair(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Take the pair that another member made, and try it out."""
    made = records.field(record, "key-pair", bytes)
    return _Begun.of(node, record, "key-pair").take(lambda _, *at: (key_pair.take(*at), b""), made)


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a key, and send it under the masks of all pairs."""
    begun = _Begun.of(node, record, "joint")
    if begun.contract.terms.scheme.dealt:
        raise ProtocolError("asked to draw a key, and keys are dealt here")
    node.erase_keys()
    return begun.take(joint.share)


def add(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up everybody's keys, or take those that were dealt, and say what the sum is called."""
    begun = _Begun.of(node, record, "joint")
    if not begun.contract.terms.scheme.dealt:
        return begun.take(joint.add, records.bytes_list(record, "messages"))
    key = dealt.load(node.policy.dealt_key, begun.agreed, begun.adder)
    answer = begun.take(joint.take, key)
    node.erase_keys()
    return answer


def commit(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a part of a key that nobody will have, and bind its public side."""
    return _Begun.of(node, record, "shares").take(shared_key.commit)


def reveal(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Once all have committed: the public side, and each member's share of the secret one."""
    messages = records.bytes_list(record, "messages")
    return _Begun.of(node, record, "shares").take(shared_key.reveal, messages)


def finish_shared(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up the shares, and say what the public key is called."""
    messages = records.bytes_list(record, "messages")
    return _Begun.of(node, record, "shares").take(shared_key.finish, messages)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where an agreement of a kind stands, what it is for, and the epoch that all have confirmed."""

    node: Node
    contract: Contract
    state: Confirmed
    agreed: Epoch
    adder: Any

    @classmethod
    def of(cls, node: Node, record: ConfigRecord, agreement: Agreement) -> _Begun:
        state, contract = node.load_agreement(Confirmed)
        terms = contract.terms
        node.policy.check_contract(contract)
        if terms.scheme.agreement != agreement:
            raise ProtocolError(
                f"asked for keys of the kind {agreement!r}, and the scheme has none"
            )
        agreed = finish(state, records.bytes_list(record, "confirms"))
        return cls(node, contract, state, agreed, terms.for_cohort(agreed.size))

    def take(self, step: Callable[..., tuple[Epoch, Any]], *more: Any) -> RecordDict:
        """Take a step: (identity, epoch, *more, adder) -> epoch with its keys, what others get."""
        made, told = step(self.node.identity, self.agreed, *more, self.adder)
        public, secret = made.scheme_public, made.scheme_secret
        state = replace(self.state, scheme_public=public, scheme_secret=secret)
        self.node.save_agreement(state, self.contract)
        return records.reply(**{"envelopes" if isinstance(told, list) else "envelope": told})
