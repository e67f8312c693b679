"""What a pairwise masking is about: public, and the same on all members and the server.

A plan's hash is in every message and every mask's key: members who differ about it cannot add up.

Source: Bonawitz et al., CCS 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import EVERYONE, NONE, Envelope, Header
from flhe.keys.agreement.thresholds import Thresholds
from flhe.math.shamir import Shamir
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX, Context
from flhe_lab.variants.secagg.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One sum of vectors, one from each member; public."""

    run_id: int  # Of the epoch
    roster_hash: bytes  # Of the epoch
    epoch: int  # Its number
    epoch_id: bytes
    members: tuple[bytes, ...]  # Their keys by rank
    round: int  # Which sum of the epoch this is
    graph: Graph  # Who masks with whom
    threshold: int
    """t, shares that give a secret, and signatures among a member and its neighbours that make a
    set the set: more than half of them."""
    min_set: int  # Fewest senders in the sum
    length: int  # Lanes of a vector
    elements: bool  # Lanes are uint64 modulo 2**64 - 2**32 + 1; otherwise uint32 modulo 2**32
    hash: bytes = field(init=False, repr=False)
    _ranks: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        holders = self.graph.holders
        if not holders < 2 * self.threshold <= 2 * holders:
            raise ConfigError(
                f"Plan(threshold={self.threshold}): more than half of {holders} share holders, or two "
                "sets of senders could be opened"
            )
        body = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "graph"}
        body["graph"] = [self.graph.members, self.graph.degree, self.graph.seed]
        digest = hashlib.sha256(dumps([PREFIX + "pairwise-plan", body])).digest()
        object.__setattr__(self, "hash", digest)
        object.__setattr__(self, "_ranks", {key: i for i, key in enumerate(self.members)})

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        *,
        graph: Graph | None = None,
        threshold: int | None = None,
        **about: Any,
    ) -> Plan:
        """A plan for the members of `epoch`; who has no epoch, as the server, names its fields.

        `about` are those of the sum: round, length and elements.

        Without `graph` it is the complete one. Without `threshold` it is that of Bonawitz et al. for
        the roster's collusion bound, which on a sparse graph means: so many among one member's
        neighbours.
        """
        graph = graph or Graph(epoch.size, epoch.size - 1)
        colluders = epoch.roster.collusion
        if threshold is None:
            threshold = Thresholds(graph.holders, min(colluders, graph.holders - 2)).threshold
        return cls(
            run_id=epoch.run_id,
            roster_hash=epoch.roster.hash,
            epoch=epoch.number,
            epoch_id=epoch.id,
            members=epoch.members,
            graph=graph,
            threshold=threshold,
            min_set=max(threshold, epoch.roster.min_opening),
            **about,
        )

    @property
    def shamir(self) -> Shamir:
        """How secrets are shared among a member and its neighbours."""
        return Shamir(self.graph.holders, self.threshold, self.threshold - 1)

    def need(self, count: int, what: str) -> None:
        """QuorumError if fewer than the threshold around a member are or have `what`."""
        if count < self.threshold:
            raise QuorumError(
                f"{count} of {self.graph.holders} around this member {what}, {self.threshold} are "
                "needed"
            )

    def header(self, stage: str, sender: int, receiver: int | None = None) -> Header:
        """Header of a message between ranks, or from one to all."""
        return Header(
            roster_hash=self.roster_hash,
            run_id=self.run_id,
            epoch=self.epoch,
            round=self.round,
            attempt=0,
            stage=stage,
            sender=self.members[sender],
            receiver=EVERYONE if receiver is None else self.members[receiver],
            policy_hash=NONE,
            layout_hash=self.hash,
        )

    def read(
        self, stage: str, message: bytes, longest: int, allowed: Collection[int]
    ) -> tuple[int, bytes]:
        """Verify a message to all by one of the ranks `allowed`; returns its rank and payload.

        Raises ProtocolError for another sum, stage or sender, AuthenticationError for a bad signature.
        """
        envelope = Envelope.from_bytes(message, longest)
        rank = self._ranks.get(envelope.header.sender, -1)
        if rank not in allowed:
            raise ProtocolError(f"{stage}: not a message by one of ranks {sorted(allowed)}")
        envelope.verify(asdict(self.header(stage, rank)), senders=None)
        return rank, envelope.payload

    def context(self) -> tuple[Context, ...]:
        """Everything that keys of this sum are derived from; the hash binds all of the plan."""
        return self.run_id, self.roster_hash, self.hash
