"""Rounds of a whole group in one process, for tests of what a session does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.coding.update import update_codec
from flhe.errors import ReuseError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sealed import Sealed, Slot
from flhe.sums.secure_sum import SecureSum
from flhe.training.draft import Draft
from flhe.training.kind import MEAN_SQUARES, mean_squares_part
from flhe.training.model import Model
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.keys.agreement import agreed

CODING: dict[str, Any] = {"bits": 16, "clip": 1.0, "max_examples": 100}
TERMS = Terms(codec=update_codec(**CODING), metrics=("loss",))
RUN = 77

KINDS: dict[str, dict[str, Any]] = {
    "sparse": {"top_k": 0.3, "small": 0, "warmup": 0},
    "sparse, in the clear": {"top_k": 0.3, "small": 0, "warmup": 0, "permute": False},
    "sparse, all of it": {"top_k": 1.0, "small": 0},
    "sparse, history": {"top_k": 0.3, "small": 0, "warmup": 0, "clip": "history"},
    "sparse, exchange": {"top_k": 0.3, "small": 0, "warmup": 0, "clip": "exchange"},
    "dense, history": {"clip": "history"},
    "dense, exchange": {"clip": "exchange"},
}
"""Rounds of several stages."""


@functools.cache
def identities(size: int) -> list[Identity]:
    return [Identity(bytes([i + 1]) * 32) for i in range(size)]


@functools.cache
def group(size: int = 3, number: int = 1, collusion: int = 0) -> tuple[Epoch, ...]:
    """An epoch of `size` members, as each of them holds it; the same one each time."""
    made = identities(size)
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(made))
    return agreed(made, RUN, number, Roster(members, collusion, 2, ("flashe",)))


def arrays() -> dict[str, NDArray[Any]]:
    return {
        "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "half": np.array([0.5, 0.25], np.float16),
        "bn.running_var": np.array([0.001], np.float32),
        "steps": np.array(10, np.int64),
        "empty": np.empty((0, 2), np.float32),
    }


def trained(rank: int) -> dict[str, NDArray[Any]]:
    """What the app of a member makes of the arrays: another step for each rank."""
    out = arrays()
    out["w"] = out["w"] + np.float32(0.1 * (rank + 1))
    out["half"] = np.array([1.0, 0.25], np.float16)
    out["bn.running_var"] = np.zeros(1, np.float32)
    out["steps"] = np.array(10 + rank, np.int64)
    return out


def start() -> Model:
    return Model.initial(arrays())


def drifted(model: Model) -> Model:
    """The model as a member has it whose memory failed: another bit, the same history."""
    w = model.masters["w"].copy()
    w[0, 0] = np.nextafter(w[0, 0], np.float32(0))
    return dataclasses.replace(model, masters={**model.masters, "w": w})


def encoded(model: Model) -> bytes:
    return b"".join(model.chunks())


def ignore(*_: Any) -> None:
    """A claim, or a record, that is fine."""


class OneOpening:
    """The rule of the store, in memory: one result a round, and one sum of mean squares."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], bytes] = {}

    def __call__(self, slot: Slot, digest: bytes) -> None:
        if self.seen.setdefault((slot.round, slot.purpose), digest) != digest:
            raise ReuseError("another result of this round was opened before")


def sessions(
    terms: Terms = TERMS, size: int = 3, model: Model | None = None, **how: int
) -> list[Session]:
    layout = (model or start()).layout
    return [Session(epoch, terms, layout) for epoch in group(size, **how)]


def part(
    session: Session,
    model: Model,
    sent: Mapping[str, NDArray[Any]] | None = None,
    examples: int = 10,
    round_: int = 1,
) -> Sealed:
    """A member's update, in a round of one stage."""
    rank = session.epoch.rank
    told = {"loss": rank + 0.5, "patients": 3.0}
    found = trained(rank) if sent is None else sent
    plain = session.encode(model, found, examples, told)
    return contributed(session, session.sum(model, round_, 0), plain)


def contributed(
    session: Session, of: SecureSum, plain: Plain, mode: str = "", support: Support | None = None
) -> Sealed:
    """A member's ciphertext of an encoded vector."""
    return of.contribute(session.epoch, session.sealer(of), plain, ignore, mode, support)


@dataclasses.dataclass
class Round:
    """A round of a group, ready to be opened."""

    sessions: list[Session]
    model: Model
    parts: list[Sealed]
    mean_squares: Sealed | None = None

    @property
    def first(self) -> Session:
        return self.sessions[0]

    def sum_of(self, parts: Sequence[Sealed]) -> Sealed:
        scheme, total = self.first.sum(self.model, 1, 0).adder, None
        for one in parts:
            total = scheme.add(total, one)
        assert total is not None
        return scheme.close(total)

    def total(self, *senders: int) -> Sealed:
        """Of all, where nobody is named."""
        return self.sum_of([self.parts[rank] for rank in senders or range(len(self.parts))])

    def open(
        self,
        total: Sealed | None = None,
        rank: int = 0,
        model: Model | None = None,
        record: Any = ignore,
        **how: Any,
    ) -> Model:
        how = {"fitted_on": self.mean_squares, **how}
        total = self.total() if total is None else total
        return self.sessions[rank].open(model or self.model, total, record, **how)[0]

    def opened_by_all(self, total: Sealed | None = None) -> Model:
        """The one model that all members come to."""
        opened = [self.open(total, rank) for rank in range(len(self.sessions))]
        assert len({encoded(model) for model in opened}) == 1
        return opened[0]


def play(
    size: int = 3, terms: Terms = TERMS, collusion: int = 0, model: Model | None = None, **how: Any
) -> Round:
    """A round of one stage."""
    model = model or start()
    members = sessions(terms, size, model, collusion=collusion)
    return Round(members, model, [part(s, model, **how) for s in members])


class Staged(Round):
    """A round of several stages, up to its sum."""

    def __init__(
        self,
        sessions: list[Session],
        model: Model,
        round_: int = 1,
        residuals: Sequence[NDArray[np.float32] | None] = (),
        mode: str = "",
        rangers: Sequence[int] | None = None,
    ) -> None:
        super().__init__(sessions, model, [])
        self.mode, self.round = mode, round_
        told = {"loss": 0.5, "patients": 3.0}
        kept = residuals or [None] * len(sessions)
        self.drafts = [
            s.draft(model, trained(s.epoch.rank), 10, told, round_, residual)
            for s, residual in zip(sessions, kept, strict=True)
        ]
        pairs, self.squares = list(zip(sessions, self.drafts, strict=True)), list[Sealed]()
        if self.first.needs_mean_squares(model):
            self.squares = [self.square(*one) for one in pairs]
            chosen = range(len(sessions)) if rangers is None else rangers
            self.mean_squares = self.sum_of([self.squares[rank] for rank in chosen])
        self.of = self.first.sum(model, round_, 0, self.mean_squares)
        self.slot = self.of.slot
        self.parts = [self.part(*one) for one in pairs]

    def square(self, session: Session, draft: Draft) -> Sealed:
        of = session.sum(self.model, self.round, 0, kind=MEAN_SQUARES)
        plain = mean_squares_part(session.terms, self.model, draft)
        return contributed(session, of, plain, session.terms.scheme.mode_ahead)

    def part(self, session: Session, draft: Draft) -> Sealed:
        digest = session.digest(self.model)
        state = session.fit(self.model, self.round, self.mean_squares, ignore, digest)
        plain, support = session.encode_draft(draft, self.model, state, self.slot)
        assert (support is None) == (not session.terms.codec.sparse)
        if support is not None:
            assert support == session.support(draft, self.slot)
        return contributed(session, self.of, plain, self.mode, support)

    def fit(self, mean_squares: Sealed | None, record: Any = ignore) -> Any:
        """Fit the thresholds of the round on a sum of mean squares."""
        digest = self.first.digest(self.model)
        return self.first.fit(self.model, self.round, mean_squares, record, digest)


def coded(**change: Any) -> Terms:
    """The terms with another codec."""
    return dataclasses.replace(TERMS, codec=update_codec(**{**CODING, **change}))


def stage(size: int, kind: str, masking: Any = "double", **how: Any) -> Staged:
    terms = dataclasses.replace(coded(**KINDS[kind]), scheme=Flashe(masking))
    return Staged(sessions(terms, size), start(), **how)


def with_slot(total: Sealed, **change: Any) -> Sealed:
    return dataclasses.replace(total, slot=dataclasses.replace(total.slot, **change))
