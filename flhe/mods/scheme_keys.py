"""Stages by which the members of a new epoch come to the keys of a scheme's own.

One key pair for all: `flhe.keys.agreement.key_pair`. Shares of a key that nobody has:
`flhe.keys.agreement.shared_key`. Or a key for each member: `flhe.keys.agreement.joint`. Of the last,
once everybody has confirmed, and before a member draws a key, it erases the ones of the epoch before:
from then on nobody here opens what was sealed for another set of senders. (Dealt keys are for one set
only.) Its model stays, and so does the update that is under way: it is encrypted again, for those that
are left.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement import dealt, joint, key_pair, shared_key
from flhe.keys.agreement.epoch import finish
from flhe.keys.agreement.states import Confirmed
from flhe.mods import records
from flhe.mods.stages import App, Stopwatch, reply
from flhe.node.node import Node
from flhe.schemes.base import Agreement
from flhe.training.contract import Contract


def make_pair(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Make the pair, as the member of the lowest rank, and seal it for the others."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "key-pair")
        state, envelope = key_pair.make(state, confirms, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelope=envelope)


def take_pair(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Take the pair that another member made, and try it out."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "key-pair")
        made = records.field(record, "key-pair", bytes)
        node.save_agreement(key_pair.take(state, confirms, made, adder), contract)
    return reply(watch)


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a key, and send it under the masks of all pairs."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "joint")
        if contract.terms.scheme.dealt:
            raise ProtocolError("asked to draw a key, and keys are dealt here")
        finish(state, confirms)  # or anybody could have keys erased
        node.erase_keys()
        state, envelope = joint.share(state, confirms, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelope=envelope)


def add(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up everybody's keys, or take those that were dealt, and say what the sum is called."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "joint")
        if contract.terms.scheme.dealt:
            key = dealt.load(node.policy.dealt_key, state, adder)
            state, envelope = joint.take(state, confirms, key, adder)
            node.erase_keys()
        else:
            messages = records.bytes_list(record, "messages")
            state, envelope = joint.add(state, confirms, messages, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelope=envelope)


def commit(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a part of a key that nobody will have, and bind its public side."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "shares")
        state, envelope = shared_key.commit(state, confirms, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelope=envelope)


def reveal(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Once all have committed: the public side, and each member's share of the secret one."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "shares")
        messages = records.bytes_list(record, "messages")
        state, envelopes = shared_key.reveal(state, confirms, messages, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelopes=envelopes)


def finish_shared(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up the shares, and say what the public key is called."""
    with (watch := Stopwatch()):
        state, adder, contract, confirms = _begun(node, record, "shares")
        messages = records.bytes_list(record, "messages")
        state, envelope = shared_key.finish(state, confirms, messages, adder)
        node.save_agreement(state, contract)
    return reply(watch, envelope=envelope)


def _begun(
    node: Node, record: ConfigRecord, agreement: Agreement
) -> tuple[Confirmed, Any, Contract, list[bytes]]:
    """Where an agreement of this kind stands, what it is for, and everyone's confirmation."""
    state, contract = node.load_agreement(Confirmed)
    terms = contract.terms
    node.policy.check_contract(contract)
    if terms.scheme.agreement != agreement:
        raise ProtocolError(f"asked for keys of the kind {agreement!r}, and the scheme has none")
    adder = terms.for_cohort(len(state.members))
    return state, adder, contract, records.bytes_list(record, "confirms")
