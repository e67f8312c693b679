"""Stages of the key agreement (`flhe.keys.agreement`), answered without calling the app.

Once all have confirmed an epoch, its members agree on the scheme's own keys. These are one key pair
for all (`key_pair`), shares of a key that no party holds (`shared_key`), or a key for each member
(`joint`). Before drawing a key of its own, a member erases those of the previous epoch. From then
on it opens no sum sealed for another set of senders. (Dealt keys are for one set only.) Its model
and the update under way stay; the update is encrypted again for the remaining members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import NoKeyError, ProtocolError
from flhe.keys.agreement import dealt, epoch, joint, key_pair, shared_key
from flhe.keys.agreement.circle import SharingParameters
from flhe.mods import records
from flhe.mods.app import App
from flhe.node import federations
from flhe.node.node import Node
from flhe.schemes.base import Agreement
from flhe.training.contract import Contract

AT_REST = ("sync", "verify", "checkpoint", "total")
"""Stages without the app: a run that resumes a federation under another config opens sealed sums
with them, before its members sign the new config."""


def advertise(node: Node, record: ConfigRecord, _message: Message, app: App) -> RecordDict:
    """First relay: a fresh ephemeral key, signed for the contract and this run's config."""
    contract = Contract.from_bytes(records.field(record, "contract", bytes))
    node.policy.check_contract(contract)
    node.check_terms(contract.terms)
    node.check_affordable(contract)
    contract.terms.scheme.check_packages()  # before other sites rely on this one
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
    shared, outbound = epoch.share(node.identity, state, records.bytes_list(record, "messages"))
    node.policy.check_members(len(shared.members))
    node.save_agreement(shared, contract)
    return records.reply(envelopes=outbound)


def confirm(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Third relay: confirm the group key without revealing it."""
    state, contract = node.load_agreement(epoch.Shared)
    confirmed, envelope = epoch.confirm(
        node.identity, state, records.bytes_list(record, "messages")
    )
    node.save_agreement(confirmed, contract)
    roster = confirmed.roster
    need = max(roster.min_opening, node.policy.fewest(contract))
    bounds = [len(roster.members), roster.collusion, need]
    return records.reply(envelope=envelope, bounds=bounds)


def finish(node: Node, record: ConfigRecord) -> None:
    """Adopt the epoch if the message brings the confirmations of all members."""
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
    """Return the node's own epoch and contract if the message names that epoch.

    Raises NoKeyError: the node has no usable key of that epoch, or it was signed for another config
    of the run and the stage may call the app; PolicyError: the node does not allow the contract.
    """
    finish(node, record)
    agreed, contract = node.load_session()
    if record.get("epoch", agreed.id) != agreed.id:
        raise NoKeyError("the others have agreed on another epoch than this node's")
    asks_app = record.get("stage") not in AT_REST
    if asks_app and agreed.contract != contract.bound(app.context.run_config):
        raise NoKeyError("this run's config is not the one that the members signed")
    node.policy.check_contract(contract)
    node.policy.check_members(agreed.size)
    return agreed, contract


# --- a scheme's own keys ---


@dataclass(frozen=True, slots=True)
class _Begun:
    """State of an agreement on a scheme's keys, its contract, and the confirmed epoch."""

    node: Node
    contract: Contract
    state: epoch.Confirmed
    agreed: epoch.Epoch
    adder: Any

    @classmethod
    def of(cls, node: Node, record: ConfigRecord, agreement: Agreement) -> _Begun:
        state, contract = node.load_agreement(epoch.Confirmed)
        terms = contract.terms
        node.policy.check_contract(contract)
        if terms.scheme.agreement != agreement:
            raise ProtocolError(f"the scheme has no keys of the kind {agreement!r}")
        agreed = epoch.finish(state, records.bytes_list(record, "confirms"))
        return cls(node, contract, state, agreed, terms.for_cohort(agreed.size))

    def take(self, step: Callable[..., tuple[epoch.Epoch, Any]], *more: Any) -> RecordDict:
        """Take a step: (identity, epoch, *more, adder) -> epoch with its keys, reply to the others."""
        made, told = step(self.node.identity, self.agreed, *more, self.adder)
        public, secret = made.scheme_public, made.scheme_secret
        state = replace(self.state, scheme_public=public, scheme_secret=secret)
        self.node.save_agreement(state, self.contract)
        return records.reply(**{"envelopes" if isinstance(told, list) else "envelope": told})


def _stage(
    agreement: Agreement, step: Callable[..., tuple[epoch.Epoch, Any]], *lists: str
) -> Callable[[Node, ConfigRecord, Message, App], RecordDict]:
    """Return the stage that takes a step with a record's lists of messages of these names."""

    def stage(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
        given = (records.bytes_list(record, name) for name in lists)
        return _Begun.of(node, record, agreement).take(step, *given)

    return stage


make_pair = _stage("key-pair", key_pair.make)
key_commit = _stage("shares", shared_key.commit)
key_reveal = _stage("shares", shared_key.reveal, "messages")
key_shared = _stage("shares", shared_key.finish, "messages")


def take_pair(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Take the pair that another member made, and test it."""
    made = records.field(record, "key-pair", bytes)
    return _Begun.of(node, record, "key-pair").take(lambda _, *at: (key_pair.take(*at), b""), made)


def draw_joint(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Draw a key, and send it under the masks of all pairs."""
    begun = _Begun.of(node, record, "joint")
    if begun.contract.terms.scheme.dealt:
        raise ProtocolError("asked to draw a key, and keys are dealt here")
    node.erase_keys()
    return begun.take(joint.share)


def add_joint(node: Node, record: ConfigRecord, _message: Message, _app: App) -> RecordDict:
    """Add up everybody's keys, or take those that were dealt, and say what the sum is called."""
    begun = _Begun.of(node, record, "joint")
    if not begun.contract.terms.scheme.dealt:
        return begun.take(joint.add, records.bytes_list(record, "messages"))
    key = dealt.load(node.policy.dealt_key, begun.agreed, begun.adder)
    answer = begun.take(joint.take, key)
    node.erase_keys()
    return answer
