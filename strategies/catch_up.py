"""Catching up: bring every member of an epoch to the same model, bit for bit, before it trains.

If the server has no model, a member with the present one seals it for the others. Keyed digests
reveal whether all of them agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flhe.coding.flatten import MAX_LAYOUT_BYTES, Layout
from flhe.errors import FlheError, ProtocolError, QuorumError
from flhe.keys import seal
from flhe.mods import records
from flhe.strategies.federation import LOST, NOTHING, Federation
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.suspects import spoilt
from flhe.strategies.trouble import give_up, log, most_common, warn
from flhe.training.vouching import Holding
from flhe.wire import canonical


class Sealing(NamedTuple):
    """A node's sealed checkpoint, the model that it claims to hold, and its voucher for that."""

    node: int
    box: ArrayRecord
    holding: Holding
    voucher: bytes


class Stand(NamedTuple):
    """A node's reported round, history and digest."""

    round: int
    history: bytes
    digest: bytes = b""


@dataclass(slots=True)
class CatchUp:
    """Brings nodes to the others' model."""

    fed: Federation
    timeout: float
    """Timeout of each stage in seconds."""

    def greet(self, nodes: Iterable[int]) -> set[int]:
        """Ask unknown nodes for their identity: members may return under other node ids.

        Returns the silent nodes, which cannot join.
        """
        fed, agreed = self.fed, self.fed.ledger.agreed
        if agreed is None or not (unknown := [n for n in nodes if n not in fed.members]):
            return set()
        keys, connected = set(fed.members.values()), set(fed.connected())
        placed = {node: key for node, key in fed.members.items() if node >= 0}
        answers = self._statuses(unknown)
        for node, (key, epoch, _) in answers.items():
            there = {k for n, k in placed.items() if n in connected}
            # A connected member keeps its place. A node without its keys joins again, except for a
            # set that may have to be given up.
            own = epoch == agreed.epoch
            if key in keys - there and (own or fed.ledger.pending is not None):
                placed = {n: k for n, k in placed.items() if k != key} | {node: key}
                (fed.confirmed if own else fed.membership.keyless).add(node)
        fed.ledger.place(placed)
        return set(unknown) - answers.keys()

    def settle(self, nodes: Iterable[int]) -> None:
        """Bring `nodes` to the others' model, by sums if possible, else by a sealed checkpoint.

        Nodes that cannot follow are logged and left out. If more members refuse the last sum than
        opened it, the round is void.

        Raises QuorumError: no connected node holds the model.
        """
        fed, asked = self.fed, sorted(nodes)
        trouble: dict[int, str] = {}
        able = [node for node in asked if fed.missing_rounds(node) is not None]
        self._judge(self._sync(able, trouble))
        if not self._holders() or fed.refusers:  # others may not have received the last sum
            others = [node for node in fed.following() if node not in asked]
            self._judge(self._sync(others, trouble))
        while 2 * len(fed.refusers) > len(fed.present()):  # silence is no vote
            self._void()
        if not self._holders():
            give_up(
                f"no connected member holds the model of round {fed.ledger.base}: start those "
                "that do, then resume the run",
                trouble,
            )
        behind = [node for node in asked if node in fed.present() and not fed.has_model(node)]
        if behind:
            try:
                self.fetch_box()
            except QuorumError as error:
                log(WARNING, "nodes %s remain behind: %s", behind, error)
                return
            for node in behind:
                trouble.pop(node, None)
            self._sync(behind, trouble)
            for node in behind:
                if fed.has_model(node):
                    log(INFO, "node %d has caught up by a checkpoint", node)
        warn("sync: node %d: %s", trouble)

    def fetch_box(self, need: int | None = None) -> ArrayRecord:
        """Return a sealed checkpoint of the present model: the kept one, or a new one by a member.

        More members must vouch for it than may collude, or `need`; two at least, unless only one is
        connected. A checkpoint with too few vouchers is not kept.

        Raises QuorumError: no checkpoint has enough vouchers.
        """
        fed, ledger = self.fed, self.fed.ledger
        if ledger.box is not None and ledger.box_round == ledger.base:
            return ledger.box
        trouble: dict[int, str] = {}
        rank = fed.parameters.epoch.rank
        able = sorted(fed.following(), key=lambda n: (not fed.has_model(n), rank(n)))
        bound = fed.spared(fed.parameters.epoch) + 1
        need = bound if need is None else need
        if len(able) < need:
            give_up(
                f"{need} members must vouch for the model of round {ledger.base}, and {len(able)} of "
                "those that hold it are connected: start more of them",
                trouble,
            )
        alone, why = len(able) == 1, "too few find their model in its checkpoint"
        if alone and fed.membership.keyless & fed.members.keys() & set(fed.connected()):
            alone, why = False, "no other connected node has a key for its checkpoint"
        for node in able:
            others = [n for n in able if n != node]
            messages = fed.messages("train", "checkpoint", [node])
            for _, sealing in fed.ask(messages, self.timeout, trouble, self._box_in):
                vouchers = self._vouched(sealing, others, max(bound, 2), trouble)
                if len(vouchers) >= need and (alone or vouchers[1:]):
                    warn("checkpoint: node %d: %s", trouble)
                    if alone:
                        log(
                            WARNING,
                            "the checkpoint by node %d is not verified: no other node is connected",
                            node,
                        )
                    if len(vouchers) >= bound:
                        ledger.keep_box(sealing.box, ledger.base, tuple(vouchers))
                    return sealing.box
                trouble.setdefault(node, why)
            trouble.setdefault(node, "no sealed checkpoint in time")
        return give_up("no member sealed a checkpoint", trouble)

    def _vouched(
        self, sealing: Sealing, others: list[int], need: int, trouble: dict[int, str]
    ) -> list[bytes]:
        """Return `need` vouchers: the sealer's, and others' whose own model equals its checkpoint's."""
        fed, vouchers, asked = self.fed, [sealing.voucher], 0

        def voucher_in(node: int, answer: ConfigRecord, _: RecordDict) -> bytes:
            voucher: bytes = records.optional(answer, "voucher", b"")
            if voucher:
                sealing.holding.check(voucher, [fed.members[node]])
            return voucher

        others = others[: 2 * need - 1]  # more than may collude
        while nodes := others[asked : asked + need - len(vouchers)]:
            asked += len(nodes)
            messages = fed.messages("train", "verify", nodes)
            for message in messages:
                message.content[records.CANDIDATE] = sealing.box
            for node, voucher in fed.ask(messages, self.timeout, trouble, voucher_in):
                if voucher:
                    vouchers.append(voucher)
                else:
                    trouble[node] = f"its model is not in the checkpoint by node {sealing.node}"
        return vouchers

    def fetch_initial(self) -> None:
        """Fetch the first model, sealed by the member of lowest rank that can make one.

        Raises QuorumError: no member made one.
        """
        fed, ledger = self.fed, self.fed.ledger
        trouble: dict[int, str] = {}
        for node in sorted(fed.present(), key=fed.parameters.epoch.rank):
            content = fed.content("initial", node in fed.confirmed, False, ())
            messages = [Message(content, node, "train")]
            for _, sealing in fed.ask(messages, self.timeout, trouble, self._initial_in):
                ledger.keep_box(sealing.box, 0, (sealing.voucher,))
                others = [n for n in fed.present() if n != node]
                self._sync(others, trouble)
                if not others or any(fed.model_round(n) == 0 for n in others):
                    log(INFO, "node %d made the initial model, and sealed it", node)
                    return
                trouble[node] = "no other node can open its initial model"
                ledger.drop_first_model()
            trouble.setdefault(node, "no initial model in time")
        give_up("no member made an initial model", trouble)

    def finish(self) -> ArrayRecord:
        """Bring all connected nodes to the last model, and have it sealed.

        The result may come from any connected member: it replaces no member's model.

        Raises QuorumError: no checkpoint has enough vouchers.
        """
        fed = self.fed
        behind = [node for node in fed.present() if not fed.has_model(node)]
        if fed.ledger.base > 0 and behind:
            self.settle(behind)
        try:
            box = self.fetch_box()
        except QuorumError as error:
            log(WARNING, "the last model: %s", error)
            box = self.fetch_box(need=1)
        if (teller := fed.teller) is not None:
            self._sync([teller], {})
        return box

    # --- steps ---

    def _sync(self, nodes: list[int], trouble: dict[int, str]) -> dict[int, Stand]:
        """Send each of `nodes` its missing sums; return their reported states afterwards."""
        fed = self.fed
        stands: dict[int, Stand] = {}
        messages = fed.messages("train", "sync", nodes)
        for node, stand in fed.ask(messages, self.timeout, trouble, _stand_in):
            self._note(node, stand)
            stands[node] = stand
        return stands

    def _statuses(self, nodes: Iterable[int]) -> dict[int, tuple[bytes, bytes, Stand]]:
        """Ask each of `nodes`, of any epoch, for its identity and state; record the state."""
        name = records.federation_name(self.fed.ledger.federation)
        content = RecordDict({records.STAGE: records.stage_record("status", federation=name)})
        contents = dict.fromkeys(nodes, content)
        answers = self.fed.gather("status", contents, self.timeout, {}, self._status_in)
        for node, (_, _, stand) in answers.items():
            self._note(node, stand)
        return answers

    def _status_in(
        self, node: int, answer: ConfigRecord, reply: RecordDict
    ) -> tuple[bytes, bytes, Stand]:
        """Return a node's identity key, which has signed the reply, its epoch, and its state."""
        key: bytes = records.field(answer, "member", bytes)
        records.check_signed(key, *self.fed.grid.asked(node), reply)
        return key, records.optional(answer, "epoch", b""), _stand_in(node, answer, reply)

    def _note(self, node: int, stand: Stand) -> None:
        known = self.fed.ledger.chain.get(stand.round) == stand.history
        self.fed.at[node] = stand.round if known else NOTHING if stand.round < 0 else LOST

    def _judge(self, stands: dict[int, Stand]) -> None:
        """Take the majority's digest among nodes at the same round as right; log the others."""
        fed = self.fed
        # In order of rank, so that the lowest rank decides a tie.
        there = [node for node in stands if node in fed.members and fed.has_model(node)]
        told = [stands[n].digest for n in sorted(there, key=fed.parameters.epoch.rank)]
        right = most_common(told) if told else b""
        for node in there:
            if stands[node].digest != right:
                fed.at[node] = LOST
                log(WARNING, "node %d: its model has drifted, it takes the others'", node)

    def _holders(self) -> list[int]:
        return list(filter(self.fed.has_model, self.fed.present()))

    def _void(self) -> None:
        """Take back the last sum: most of its receivers refuse it.

        Raises AlteredError: members opened it together, so they sign no other one from the same
        model.
        """
        fed = self.fed
        if fed.terms.scheme.opened_together:
            raise spoilt(fed, fed.ledger.base)
        narrowed = 2 * len(fed.altered) > len(fed.refusers) and fed.suspect()
        fed.refusers, fed.altered = set(), set()
        number = fed.ledger.void()
        fed.voids[number] = not narrowed
        log(ERROR, "no node could open the sum of round %d: the round is void", number)
        self._statuses(fed.present())

    def take_back(self, agreed: Agreed) -> None:
        """Take back sums that too few have opened, if all members joined the new epoch.

        Their keys may be gone, as after a power failure everywhere. Then no other node can open
        those sums, and at most as many members hold them as may collude.
        """
        fed, old = self.fed, set(self.fed.members.values())
        answers = self._statuses(agreed.members)
        if len(answers) < len(agreed.members) or not old <= set(agreed.members.values()):
            return
        if fed.terms.scheme.opened_together:
            return  # members have answered for them, and sign no others
        rounds = [fed.model_round(node) for node in answers]
        furthest = max(
            (r for r in rounds if rounds.count(r) > agreed.colluders), default=max(rounds)
        )
        while fed.ledger.base > furthest and fed.ledger.base in fed.ledger.sums:
            text = "too few have opened the sum of round %d, and its key is gone: it is void"
            log(ERROR, text, fed.ledger.void())
        fed.at |= {node: LOST for node in answers if fed.model_round(node) > fed.ledger.base}

    def _initial_in(self, node: int, answer: ConfigRecord, reply: RecordDict) -> Sealing:
        """Return the sealed initial model in a reply; adopt its layout and history."""
        ledger = self.fed.ledger
        try:
            stand = _stand_in(node, answer, reply)
            encoded = records.field(answer, "layout", bytes)
            layout = Layout.from_fields(canonical.loads(encoded, MAX_LAYOUT_BYTES, "layout"))
            if stand.round != 0 or len(stand.history) != 32:
                raise ProtocolError("its initial model is of a later round")
            ledger.layout, ledger.chain = layout, {0: stand.history}
            return self._box_in(node, answer, reply)
        except FlheError:
            ledger.drop_first_model()
            raise

    def _box_in(self, node: int, answer: ConfigRecord, reply: RecordDict) -> Sealing:
        """Return the checkpoint in a reply, if it is of the present model and epoch."""
        ledger, stand = self.fed.ledger, _stand_in(node, answer, reply)
        box = reply.get(records.BOX)
        if not isinstance(box, ArrayRecord):
            raise ProtocolError("the reply holds no sealed checkpoint")
        if (stand.round, stand.history) != (ledger.base, ledger.history):
            raise ProtocolError("its checkpoint is of another model than the others'")
        head, agreed = seal.peek(records.to_pieces(box)[0]), self.fed.parameters.epoch
        expect = agreed.epoch, ledger.base, agreed.rank(node)
        if (head.epoch, head.round, head.rank) != expect:
            raise ProtocolError("its checkpoint is sealed for another round or epoch")
        holding = self.fed.parameters.holding(stand.digest)
        voucher: bytes = records.field(answer, "voucher", bytes)
        holding.check(voucher, [self.fed.members[node]])
        return Sealing(node, box, holding, voucher)


def _stand_in(_node: int, answer: ConfigRecord, _reply: RecordDict) -> Stand:
    return Stand(
        records.field(answer, "round", int),
        records.optional(answer, "history", b""),
        records.optional(answer, "digest", b""),
    )
