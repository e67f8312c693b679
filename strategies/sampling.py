"""Sampling: number of members that a round asks, their choice, and the minimum of answers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from flhe.errors import ConfigError
from flhe.strategies.federation import Federation
from flhe.training.terms import Terms


@dataclass(frozen=True, slots=True)
class Sampling:
    """Requirements of a round, by the terms and the settings of `HEStrategy`."""

    terms: Terms
    min_replies: int | None
    fraction_train: float
    min_train_nodes: int

    def needed(self, fed: Federation | None) -> int:
        """Return the updates that a sum needs: of all members, if no other one opens."""
        members = 0 if fed is None else len(fed.members)
        if self.terms.scheme.needs_all_members and members:
            return max(members, self.min_replies or 0)
        return self.quorum(fed)

    def quorum(self, fed: Federation | None) -> int:
        """Return the members that a round needs."""
        members = 0 if fed is None else len(fed.members)
        if not self.terms.scheme.opened_together or members == 0:
            return self.min_replies or (members - 1) // 3 + 2
        assert fed is not None
        thresholds = fed.parameters.circle.thresholds
        least = max(thresholds.min_set, self.terms.scheme.threshold_of(members))
        return max(self.min_replies or 0, least, fed.parameters.epoch.min_opening)

    def sample(self, fed: Federation, fraction: float, minimum: int) -> list[int]:
        """Return connected members with the others' model, chosen at random.

        At least as many as a sum needs. Some suspects of altering a sum are left out, as long as
        enough remain.
        """
        needed = self.needed(fed)
        able = [node for node in fed.following() if fed.members[node] not in fed.barred]
        doubtful = fed.suspects.left_out(len(able) - needed)
        able = [node for node in able if fed.members[node] not in doubtful]
        size = _size(len(fed.members), fraction, max(minimum, needed))
        return secrets.SystemRandom().sample(able, min(size, len(able)))

    def check(self, fed: Federation) -> None:
        """Refuse a fraction that samples fewer members than a round needs: ConfigError."""
        members, needed = len(fed.members), self.needed(fed)
        size = _size(members, self.fraction_train, self.min_train_nodes)
        if self.fraction_train > 0 and size < needed:
            raise ConfigError(
                f"fraction_train={self.fraction_train} samples {size} of {members} members, a round "
                f"needs {needed} updates: raise fraction_train or min_train_nodes"
            )

    def mode(self, fed: Federation) -> str:
        """Return the scheme's mode in a dense round, by the expected dropout."""
        if self.terms.codec.sparse:
            return ""
        members = len(fed.members)
        asked = _size(members, self.fraction_train, self.min_train_nodes)
        dropout = 1 - asked / members if fed.dropout is None else fed.dropout
        return self.terms.scheme.mode_for(members, dropout)


def _size(members: int, fraction: float, minimum: int) -> int:
    return min(max(int(members * fraction), minimum), members)
