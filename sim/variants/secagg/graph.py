"""Graph: who masks with whom, and who holds whose shares.

Complete: everybody with everybody, as in SecAgg. Regular: everybody with `degree` others, as in
SecAgg+, on a Harary graph (members on a circle, each joined to the degree / 2 on either side, and to
the one opposite where the degree is odd) whose places are dealt out by a permutation. The permutation
comes from a public seed that no single party chose, such as the epoch's id, after the members are
fixed. Then the neighbours of one member are a uniformly random set of the others.

Source: Bell et al., CCS 2020, Sec. 3.1 and Definition 3.2 (good graphs); Harary, 1962.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flhe.errors import ConfigError
from flhe.math.permutation import Permutation
from flhe.wire.derive import hkdf


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected graph on ranks 0 to members - 1, without loops, every degree the same."""

    members: int  # N, 3 or more
    degree: int  # k, neighbours of each, 2 to N - 1; even, or N is. N - 1 is the complete graph.
    seed: bytes = b""  # Public, 16 bytes or more; not needed for the complete graph
    _circle: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _place: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.degree < self.members or (self.degree % 2 and self.members % 2):
            raise ConfigError(
                f"Graph(members={self.members}, degree={self.degree}): a degree of 2 to "
                f"{self.members - 1}, even for an odd number of members"
            )
        if not self.complete and len(self.seed) < 16:
            raise ConfigError("Graph: a seed of 16 bytes is needed, such as the epoch's id")
        circle = place = np.arange(self.members, dtype=np.uint32)
        if not self.complete:
            # The key is for this graph alone, and hides nothing.
            key = hkdf(self.seed, "pairwise-graph", self.members, self.degree)
            dealt = Permutation(key, self.members)
            circle, place = dealt.forward(circle), dealt.inverse(circle)
        object.__setattr__(self, "_circle", tuple(circle.tolist()))
        object.__setattr__(self, "_place", tuple(place.tolist()))

    @property
    def complete(self) -> bool:
        """Whether everybody masks with everybody."""
        return self.degree == self.members - 1

    @property
    def holders(self) -> int:
        """Who holds shares of one member's secrets, itself included: k + 1."""
        return self.degree + 1

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Ranks that `rank` masks with, ascending."""
        return tuple(r for r in self.around(rank) if r != rank)

    def around(self, rank: int) -> tuple[int, ...]:
        """`rank` and its neighbours, ascending; a holder's place in it is that of its shares."""
        if self.complete:
            return self._circle
        at, half = self._place[rank], self.degree // 2
        found = {self._circle[(at + step) % self.members] for step in range(-half, half + 1)}
        if self.degree % 2:
            found.add(self._circle[(at + self.members // 2) % self.members])
        return tuple(sorted(found))
