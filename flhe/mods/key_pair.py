"""Stages by which the members of a new epoch come to the scheme's key pair: `flhe.keys.agreement.key_pair`."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement import key_pair
from flhe.keys.agreement.epoch import Confirmed
from flhe.mods import records
from flhe.mods.stages import App, Stopwatch, reply
from flhe.node.node import Node
from flhe.schemes.base import Scheme
from flhe.training.terms import Terms


def make(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Make the pair, as the member of the lowest rank, and seal it for the others."""
    watch = Stopwatch()
    with watch:
        state, scheme, terms = _at(node, record)
        confirms = records.bytes_list(record, "confirms")
        state, envelope = key_pair.make(state, confirms, scheme, terms.hash())
        node.save_agreement(state)
    return reply(envelope=envelope, **{"crypto-s": watch.seconds})


def take(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Take the pair that another member made, and try it out."""
    watch = Stopwatch()
    with watch:
        state, scheme, terms = _at(node, record)
        confirms = records.bytes_list(record, "confirms")
        made = records.field(record, "key-pair", bytes)
        node.save_agreement(key_pair.take(state, confirms, made, scheme, terms.hash()))
    return reply(**{"crypto-s": watch.seconds})


def _at(node: Node, record: ConfigRecord) -> tuple[Confirmed, Scheme, Terms]:
    """Where the agreement stands, and what the pair is for."""
    announced = records.field(record, "terms", bytes)
    node.check_terms(announced)
    terms = Terms.from_bytes(announced)
    node.policy.check_terms(terms)
    if not terms.keyed:
        raise ProtocolError("asked for a key pair, and the scheme has none")
    state = node.load_agreement(Confirmed)
    return state, terms.for_cohort(len(state.members)), terms
