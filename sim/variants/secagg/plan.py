"""What a pairwise masking is about: public, and the same on all members and the server.

A plan's hash is in every message and in every mask's key, so two members who differ about anything
cannot add up.

Source: Bonawitz et al., CCS 2017.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import EVERYONE, NONE, Header
from flhe.keys.agreement.thresholds import Thresholds
from flhe.math.shamir import Shamir
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX, Context
from flhe_lab.variants.secagg.graph import Graph

MAX_LANES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One sum of vectors, one from each member; public.

    Parameters
    ----------
    purpose : str
        What the sum is for; masks of one purpose are not those of another.
    run_id, roster_hash, epoch, epoch_id, members
        Of the epoch: its run, its roster's hash, its number, its id, its members' keys by rank.
    round, attempt : int
        Which sum of the epoch this is.
    graph : Graph
        Who masks with whom.
    threshold : int
        t, shares that give a secret, and signatures among a member and its neighbours that make a set
        the set: more than half of them.
    min_set : int
        Fewest senders in the sum.
    length : int
        Lanes of a vector.
    elements : bool
        Lanes are uint64 modulo 2**64 - 2**32 + 1; otherwise uint32 modulo 2**32.
    layout_hash : bytes
        What the lanes mean: SHA-256, or nothing.
    """

    purpose: str
    run_id: int
    roster_hash: bytes
    epoch: int
    epoch_id: bytes
    members: tuple[bytes, ...]
    round: int
    attempt: int
    graph: Graph
    threshold: int
    min_set: int
    length: int
    elements: bool
    layout_hash: bytes = NONE
    hash: bytes = field(init=False, repr=False)
    _ranks: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        holders = self.graph.holders
        if self.graph.members != len(self.members):
            raise ConfigError(
                f"Plan: a graph of {self.graph.members} for {len(self.members)} members"
            )
        if not holders < 2 * self.threshold <= 2 * holders:
            raise ConfigError(
                f"Plan(threshold={self.threshold}): more than half of {holders} share holders, or two "
                "sets of senders could be opened"
            )
        if not max(self.threshold, 2) <= self.min_set <= len(self.members):
            raise ConfigError(
                f"Plan(min_set={self.min_set}): {max(self.threshold, 2)} to {len(self.members)}"
            )
        if not 1 <= self.length <= MAX_LANES:
            raise ConfigError(f"Plan(length={self.length}): 1 to 2**31 lanes")
        body = {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "graph"}
        body["graph"] = [self.graph.members, self.graph.degree, self.graph.seed]
        digest = hashlib.sha256(dumps([PREFIX + "pairwise-plan", body])).digest()
        object.__setattr__(self, "hash", digest)
        object.__setattr__(self, "_ranks", {key: i for i, key in enumerate(self.members)})
        self.header("mask-key", 0)  # bounds of run, epoch, round, attempt and hashes

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        *,
        purpose: str,
        round: int,  # noqa: A002
        attempt: int,
        length: int,
        elements: bool,
        graph: Graph | None = None,
        threshold: int | None = None,
        layout_hash: bytes = NONE,
    ) -> Plan:
        """A plan for the members of `epoch`; who has no epoch, as the server, names its fields.

        Without `graph` it is the complete one. Without `threshold` it is that of Bonawitz et al. for
        the roster's collusion bound, which on a sparse graph means: so many among one member's
        neighbours.
        """
        graph = graph or Graph.full(epoch.size)
        colluders = epoch.roster.collusion
        if threshold is None:
            threshold = Thresholds(graph.holders, min(colluders, graph.holders - 2)).threshold
        return cls(
            purpose=purpose,
            run_id=epoch.run_id,
            roster_hash=epoch.roster.hash,
            epoch=epoch.number,
            epoch_id=epoch.id,
            members=epoch.members,
            round=round,
            attempt=attempt,
            graph=graph,
            threshold=threshold,
            min_set=max(threshold, epoch.roster.min_opening),
            length=length,
            elements=elements,
            layout_hash=layout_hash,
        )

    def check(self, epoch: Epoch) -> None:
        """Refuse a plan for another epoch than `epoch`; ProtocolError."""
        ours = (epoch.run_id, epoch.roster.hash, epoch.number, epoch.id, epoch.members)
        if (self.run_id, self.roster_hash, self.epoch, self.epoch_id, self.members) != ours:
            raise ProtocolError("the plan is for another epoch than the one that this member is in")

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

    def rank(self, public: bytes) -> int:
        """Rank of the member with that key. Raises ProtocolError if there is none."""
        if public not in self._ranks:
            raise ProtocolError(f"the sender {public.hex()[:16]} is not a member of this epoch")
        return self._ranks[public]

    def header(self, stage: str, sender: int, receiver: int | None = None) -> Header:
        """Header of a message between ranks, or from one to all."""
        return Header(
            roster_hash=self.roster_hash,
            run_id=self.run_id,
            epoch=self.epoch,
            round=self.round,
            attempt=self.attempt,
            stage=stage,
            sender=self.members[sender],
            receiver=EVERYONE if receiver is None else self.members[receiver],
            policy_hash=NONE,
            layout_hash=self.hash,
        )

    def expect(self, stage: str) -> dict[str, Any]:
        """Every field that messages of a stage to all members have in common."""
        expect = asdict(self.header(stage, 0))
        del expect["sender"]
        return expect

    def context(self) -> tuple[Context, ...]:
        """Everything that keys of this sum are derived from; the hash binds all of the plan."""
        return self.run_id, self.roster_hash, self.hash
