"""Stages of the key agreement: `flhe.keys.agreement.epoch`, answered without calling the app."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import NoKeyError, ProtocolError
from flhe.keys.agreement import epoch
from flhe.keys.agreement.circle import SharingParameters
from flhe.mods import records
from flhe.mods.stages import App, reply
from flhe.node.node import Node
from flhe.training.terms import Terms


def advertise(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """First relay: a fresh ephemeral key, signed."""
    announced = records.field(record, "terms", bytes)
    terms = Terms.from_bytes(announced)
    node.policy.check_terms(terms)
    node.check_terms(announced)
    terms.scheme.check_packages()  # before anybody relies on this site
    number = records.field(record, "number", int)
    node.check_begun()
    state, envelope = epoch.advertise(node.identity, node.run_id, number, node.policy.roster)
    node.save_agreement(state)
    node.announce(announced)
    return reply(envelope=envelope)


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Second relay: a secret contribution to each peer."""
    state = node.load_agreement(epoch.Advertised)
    shared, outbound = epoch.share(state, records.bytes_list(record, "messages"))
    node.policy.check_members(len(shared.members))
    node.save_agreement(shared)
    return reply(envelopes=outbound)


def confirm(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Third relay: the group key is known; say so without saying it."""
    state = node.load_agreement(epoch.Shared)
    confirmed, envelope = epoch.confirm(state, records.bytes_list(record, "messages"))
    node.save_agreement(confirmed)
    need = max(confirmed.roster.min_opening, node.policy.min_survivors)
    roster = confirmed.roster
    bounds = {"sites": len(roster.members), "colluders": roster.collusion, "min-opening": need}
    return reply(envelope=envelope, **bounds)


def finish(node: Node, record: ConfigRecord) -> None:
    """Everyone's confirmation, where a message brings them: from here on the epoch is this node's."""
    confirms = records.bytes_list(record, "confirms")
    if not confirms or not node.agreement_confirmed():
        return
    announced = records.field(record, "terms", bytes)
    node.check_terms(announced)
    node.check_announced(announced)
    state = node.load_agreement(epoch.Confirmed)
    agreed = epoch.finish(state, confirms)
    terms = Terms.from_bytes(announced)
    node.policy.check_terms(terms)
    if terms.scheme.member_secrets and not state.scheme_public:
        raise ProtocolError("the members have not agreed on the scheme's keys yet: start over")
    if terms.scheme.opened_together:
        SharingParameters.of(agreed, 0).check_members()
    node.check_begun(begin=True)
    node.start_session(agreed, terms)
    node.drop_agreement()


def current(node: Node, record: ConfigRecord) -> tuple[epoch.Epoch, Terms]:
    """The node's own epoch and terms, if they are those that the message speaks of.

    Raises NoKeyError: the node has no usable key, or not of that epoch; PolicyError: other terms
    than the federation's, or than the node allows.
    """
    announced = records.field(record, "terms", bytes)
    finish(node, record)
    agreed, terms = node.load_session()
    if record.get("epoch", agreed.id) != agreed.id:
        raise NoKeyError("the others have agreed on another epoch than this node's")
    node.check_terms(announced)
    node.policy.check_terms(terms)
    node.policy.check_members(agreed.size)
    return agreed, terms
