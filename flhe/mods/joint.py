"""Stages by which the members of a new epoch come to ESHE's keys: `flhe.keys.agreement.joint`.

Once everybody has confirmed, and before a member draws a key, it erases those of the epoch before: from
then on nobody here opens what was sealed for another set of senders. (Dealt keys are for one set only.)
Its model stays, and so does the update that is under way: it is encrypted again, for those that are
left.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.keys.agreement import dealt, joint
from flhe.keys.agreement.epoch import finish
from flhe.keys.agreement.states import Confirmed
from flhe.mods import records
from flhe.mods.stages import App, Stopwatch, reply
from flhe.node.node import Node
from flhe.schemes.esafl.scheme import Eshe
from flhe.training.terms import Terms


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a key, and send it under the masks of all pairs."""
    watch = Stopwatch()
    with watch:
        state, scheme, terms = _at(node, record)
        if scheme.keys != "joint":
            raise ProtocolError("asked to draw a key, and keys are dealt here")
        confirms = records.bytes_list(record, "confirms")
        finish(state, confirms)  # or anybody could have keys erased
        node.erase_keys()
        state, envelope = joint.share(state, confirms, scheme, terms.hash())
        node.save_agreement(state)
    return reply(envelope=envelope, **{"crypto-s": watch.seconds})


def add(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up everybody's keys, or take those that were dealt, and say what the sum is called."""
    watch = Stopwatch()
    with watch:
        state, scheme, terms = _at(node, record)
        confirms = records.bytes_list(record, "confirms")
        if scheme.keys == "dealt":
            key = dealt.load(node.policy.dealt_key, state, scheme)
            state, envelope = joint.take(state, confirms, key, scheme, terms.hash())
            node.erase_keys()
        else:
            messages = records.bytes_list(record, "messages")
            state, envelope = joint.add(state, confirms, messages, scheme, terms.hash())
        node.save_agreement(state)
    return reply(envelope=envelope, **{"crypto-s": watch.seconds})


def _at(node: Node, record: ConfigRecord) -> tuple[Confirmed, Eshe, Terms]:
    """Where the agreement stands, and what the keys are for."""
    announced = records.field(record, "terms", bytes)
    node.check_terms(announced)
    terms = Terms.from_bytes(announced)
    node.policy.check_terms(terms)
    state = node.load_agreement(Confirmed)
    scheme = terms.for_cohort(len(state.members))
    if not terms.joint or not isinstance(scheme, Eshe):
        raise ProtocolError("asked for a sum of keys, and the scheme has none")
    return state, scheme, terms
