"""Stages of the key agreement: `flhe.keys.agreement.epoch`, answered without calling the app."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import NoKeyError, ProtocolError
from flhe.keys.agreement import epoch
from flhe.keys.agreement.circle import SharingParameters
from flhe.mods import records
from flhe.mods.app import App
from flhe.node import federations
from flhe.node.node import Node
from flhe.training.contract import Contract

AT_REST = ("sync", "verify", "checkpoint", "total")
"""Stages that no app hears of: a run that resumes a federation under another config opens with them
what was sealed before, and then its members sign the other config."""


def advertise(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """First relay: a fresh ephemeral key, signed for the contract and this run's config."""
    contract = Contract.from_bytes(records.field(record, "contract", bytes))
    node.policy.check_contract(contract)
    node.check_terms(contract.terms)
    node.check_affordable(contract)
    contract.terms.scheme.check_packages()  # before anybody relies on this site
    number = records.field(record, "number", int)
    node.check_begun()
    bound, roster = contract.bound(app.context.run_config), node.policy.roster
    state, envelope = epoch.advertise(node.identity, node.run_id, number, roster, bound)
    node.save_agreement(state, contract)
    federations.prune(node.store, node.run_id)
    return records.reply(envelope=envelope)


def share(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Second relay: a secret contribution to each peer."""
    state, contract = node.load_agreement(epoch.Advertised)
    shared, outbound = epoch.share(state, records.bytes_list(record, "messages"))
    node.policy.check_members(len(shared.members))
    node.save_agreement(shared, contract)
    return records.reply(envelopes=outbound)


def confirm(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Third relay: the group key is known; say so without saying it."""
    state, contract = node.load_agreement(epoch.Shared)
    confirmed, envelope = epoch.confirm(state, records.bytes_list(record, "messages"))
    node.save_agreement(confirmed, contract)
    roster = confirmed.roster
    need = max(roster.min_opening, node.policy.fewest(contract))
    bounds = [len(roster.members), roster.collusion, need]
    return records.reply(envelope=envelope, bounds=bounds)


def finish(node: Node, record: ConfigRecord) -> None:
    """Everyone's confirmation, where a message brings them: from here on the epoch is this node's."""
    confirms = records.bytes_list(record, "confirms")
    if not confirms or not node.agreement_confirmed():
        return
    state, contract = node.load_agreement(epoch.Confirmed)
    scheme, agreed = contract.terms.scheme, epoch.finish(state, confirms)
    node.policy.check_contract(contract)
    node.check_terms(contract.terms)
    if scheme.member_secrets and not state.scheme_public:
        raise ProtocolError("the members have not agreed on the scheme's keys yet: start over")
    if scheme.opened_together:
        SharingParameters.of(agreed).check_members()
    node.check_begun(begin=True)
    node.start_session(agreed, contract)
    node.drop_agreement()


def current(node: Node, record: ConfigRecord, app: App) -> tuple[epoch.Epoch, Contract]:
    """The node's own epoch and contract, if it is the epoch that the message speaks of.

    Raises NoKeyError: the node has no usable key, or not of that epoch, or it was signed for another
    config of the run and the stage may ask the app; PolicyError: a contract that the node does not
    allow.
    """
    finish(node, record)
    agreed, contract = node.load_session()
    if record.get("epoch", agreed.id) != agreed.id:
        raise NoKeyError("the others have agreed on another epoch than this node's")
    asks_app = record.get("stage") not in AT_REST
    if asks_app and agreed.contract != contract.bound(app.context.run_config):
        raise NoKeyError("this run has another config than the one that the members signed")
    node.policy.check_contract(contract)
    node.policy.check_members(agreed.size)
    return agreed, contract
