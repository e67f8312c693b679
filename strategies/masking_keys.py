"""MaskingKeyAgreement: masking keys by SecAgg's protocol, for a strategy of one's own.

    with MaskingKeyAgreement(grid) as keys:                      # a Grid itself
        strategy.start(keys, initial_arrays)                     # whose replies come masked
        ...
        seeds = keys.release(survivors)                          # in its aggregate_train

In every round each member draws a seed, shares it, and its app masks with it. The server learns the
sum of the seeds of one survivor set a round only. Signing needs so many members that no two sets
are ever signed.

Source: SASH, Sec. 3.2; Bonawitz et al., CCS 2017; `flhe.keys.agreement.masking`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Unpack

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.keys.agreement.answers import combine
from flhe.math.ring import Elements
from flhe.mods import records
from flhe.schemes.base import Scheme
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sealed import Sealed
from flhe.strategies.key_agreement import MIN_MEMBERS
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe.strategies.options import WaitOptions, check_names
from flhe.strategies.report import MeteredGrid
from flhe.strategies.trouble import warn
from flhe.strategies.workflow import Workflow
from flhe.training.terms import Terms

MAX_ROUNDS = 10_000
"""Default maximum number of rounds in a federation."""


class MaskingKeyAgreement(Workflow, MeteredGrid):
    """A Grid whose nodes mask their replies to `train` messages, with agreed keys.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    grid : Grid
        Grid of a ServerApp; every node's app has a `MaskingKeyMod` before it.
    min_nodes : int
        Nodes to wait for before members agree on keys.
    max_rounds : int
        Maximum number of rounds in this federation, part of the contract that members sign.
    **options
        Timeouts (`RunSettings`).
    """

    asks: ClassVar[bool] = False

    def __init__(
        self,
        grid: Grid,
        *,
        min_nodes: int = MIN_MEMBERS,
        max_rounds: int = MAX_ROUNDS,
        **options: Unpack[WaitOptions],
    ) -> None:
        check_names(MaskingKeyAgreement, options)
        schemes: Iterator[Scheme] = (SCHEMES.named(name)() for name in SCHEMES.own)
        # The scheme of these masking keys, with its defaults: its own masks are not used.
        scheme = next(s for s in schemes if s.per_sum_keys and s.reader == "server")
        terms = Terms(scheme, metrics=(), evaluated=())
        Workflow.__init__(self, grid, terms, max_rounds, min_nodes, resume=False, **options)
        MeteredGrid.__init__(self, self._stream)
        self._owed = False
        """Whether masked replies were passed on without a request for their seeds."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Refuse a strategy's result from masked replies without their seeds: ConfigError."""
        if kind is None:
            self._check_released()

    @property
    def elements(self) -> int:
        """Number of field elements in a seed, modulo `flhe.math.ring.Q`."""
        return self.terms.scheme.elements(0)

    def get_node_ids(self) -> list[int]:
        """Return the connected members."""
        fed = self._running()
        return [node for node in fed.present() if fed.members[node] not in fed.barred]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run one round: send each member its message with a masking key, and return the replies.

        A member's reply without its share for each other member is dropped. Replies to other
        messages than `train` would come in clear: ConfigError.
        """
        fed, asked = self._running(), list(messages)
        self._check_released()
        if any(message.metadata.message_type != "train" for message in asked):
            raise ConfigError(
                "only replies to train messages are masked: set fraction_evaluate=0.0"
            )
        self._epochs.prepare(fed.ledger.round + 1)
        fed.begin(fed.ledger.round + 1, 0)
        for message in asked:
            stage = fed.stage("masking-key", message.metadata.dst_node_id in fed.confirmed)
            message.content = RecordDict({**message.content, records.STAGE: stage})
        seconds = self.settings.round_timeout if timeout is None else timeout
        trouble: dict[int, str] = {}
        able = set(self.get_node_ids())
        members = [message for message in asked if message.metadata.dst_node_id in able]
        replies = fed.grid.send_and_receive(members, timeout=seconds)
        masked = [reply for _, reply in fed.grid.fold(replies, trouble, self._taken)]
        warn("masking-key: node %d is left out: %s", trouble)
        self._owed = bool(masked)
        return masked

    def _check_released(self) -> None:
        owed, self._owed = self._owed, False
        if owed:
            raise ConfigError(
                "the strategy has used masked replies without release(), so its result is noise. "
                "It must add them up and subtract the sum of the seeds; strategies that look at "
                "single updates (FedTrimmedAvg, FedMedian, Krum) cannot work"
            )

    def _taken(self, node: int, reply: Message) -> Message:
        """Return the app's own reply, after keeping the shares that came with it."""
        fed = self._running()
        answer = fed.member_answer(node, reply)
        fed.attempt.shares[node] = fed.parameters.shares_in(node, answer)
        fed.heard(node, answer, reply.content)
        del reply.content[records.REPLY]
        return reply

    def release(self, nodes: Iterable[int]) -> Elements:
        """Return the sum of the seeds of `nodes`, modulo Q, uint64 (elements,); once a round.

        `nodes` are the senders of the masked replies that the strategy has added.

        Raises QuorumError: too few signed the set, or answered; ProtocolError: a node without a
        reply in this round, or a second set of it.
        """
        fed, chosen = self._running(), sorted(nodes)
        self._owed = False
        if not set(chosen) <= fed.attempt.shares.keys() or fed.ledger.phase != "training":
            raise ProtocolError(
                "release: name nodes whose masked replies came in this round, and only once: "
                "members sign one set"
            )
        senders = tuple(sorted(map(fed.parameters.epoch.rank, chosen)))
        if len(senders) < (need := self.sampling.quorum(fed)):
            raise QuorumError(f"release: {len(senders)} survivors, a sum needs {need}")
        slot = fed.parameters.sums.masking_slot(fed.ledger.round)
        nothing = Sealed(slot.purpose, slot, senders, 0, np.empty(0, np.uint8))
        agreement = MaskingAgreement(fed, fed.adder, nothing, self.settings)
        agreement.sign()
        answers = agreement.unmask()
        fed.ledger.done()
        return combine(fed.parameters.circle, slot, senders, answers)
