"""Thresholds: the number of shares that give a secret, so that no server gets two answers.

    t = floor((N + c) / 2) + 1      2 t > N + c

Of two secrets, N holders have a share each, and c of them collude with the server. The others hand
out a share of only one. Were t shares of both handed out, 2 (t - c) of the N - c honest holders
would have answered: more than there are. For the same reason, two sets of senders cannot both have
t signatures. N counts the sites of the roster, in an epoch or not. The colluders may all be among
few members, and two groups of one roster must not both be large enough to open sums.

Source: Bonawitz et al., CCS 2017, Sec. 6.2 and Theorem 6.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Bounds of one group of share holders.

    `members` is N, sites of the roster, 3 or more, of which an epoch's members hold a share of each
    secret. `colluders` is c, members that may collude with each other and with the server. Raises
    ConfigError: so many colluders that not even all members are enough.
    """

    members: int
    colluders: int

    def __post_init__(self) -> None:
        if type(self.members) is not int or self.members < 3:
            raise ConfigError(f"Thresholds(members={self.members}): at least 3 are needed")
        if type(self.colluders) is not int or self.colluders < 0:
            raise ConfigError(f"Thresholds(colluders={self.colluders}): an integer, 0 or more")
        if self.min_set > self.members:
            raise ConfigError(
                f"Thresholds(members={self.members}, colluders={self.colluders}): a set needs "
                f"{self.min_set} members; allow at most {self.members - 2} colluders"
            )

    @property
    def threshold(self) -> int:
        """t: shares that give a secret, and signatures that make a set the set."""
        return (self.members + self.colluders) // 2 + 1

    @property
    def min_set(self) -> int:
        """Minimum senders in a sum: max(t, c + 2), so that two of them are honest."""
        return max(self.threshold, self.colluders + 2)
