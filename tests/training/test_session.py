"""Session: rounds of a whole group in one process, and the order in which a round may go wrong."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.extras import CHECK
from flhe.coding.flatten import Layout
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.errors import (
    ClippedError,
    ExamplesError,
    FlheError,
    MisfitError,
    NotFiniteError,
    ProtocolError,
    QuorumError,
    RangeError,
    ReplyError,
    ReuseError,
)
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.schemes.sealed import Sealed, Slot
from flhe.training import mean_squares as ranges_module
from flhe.training import opening as session_module
from flhe.training.draft import Draft
from flhe.training.due import MAX_AHEAD, RANGES, SUM, check_ahead
from flhe.training.mean_squares import encode, fit
from flhe.training.model import Model, next_history
from flhe.training.optimizer import ServerOptimizer
from flhe.training.session import Session
from flhe.training.start import UNTOLD, start_layout
from flhe.training.terms import Terms
from tests.keys.agreement import agreed

TERMS = Terms(bits=16, clip=1.0, max_examples=100, metrics=("loss",))
RUN = 77


SOME = np.array([0, 3], np.uint32)


def group(size: int, number: int = 1, collusion: int = 0) -> tuple[Epoch, ...]:
    """An epoch of `size` members, as each of them holds it; the same one each time."""
    return agreed_once(size, number, collusion)


@functools.cache
def agreed_once(size: int, number: int, collusion: int) -> tuple[Epoch, ...]:
    identities = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(size)]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    return agreed(identities, RUN, number, Roster(members, collusion, 2, ("flashe",)))


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


def encoded(model: Model) -> bytes:
    return b"".join(model.chunks())


def ignore(*_: Any) -> None:
    """A claim, or a record, that is fine."""


@dataclasses.dataclass
class Round:
    """One round of a group, ready to be opened."""

    sessions: list[Session]
    model: Model
    parts: list[Sealed]

    def total(self, *senders: int) -> Sealed:
        total = None
        for rank in senders:
            total = self.sessions[0].scheme.add(total, self.parts[rank])
        assert total is not None
        return total

    def open(self, total: Sealed, rank: int = 0, model: Model | None = None) -> Model:
        return self.sessions[rank].open(model or self.model, total, ignore)[0]


def part(
    session: Session, model: Model, attempt: int = 0, examples: int = 10, round_: int = 1
) -> Sealed:
    rank = session.epoch.rank
    told = {"loss": rank + 0.5, "patients": 3.0}
    encoded = session.encode(model, trained(rank), examples, told, session.digest(model))
    return session.seal(session.sealer(), encoded, session.slot(model, round_, attempt), ignore)


def play(size: int = 3, terms: Terms = TERMS, collusion: int = 0, **how: Any) -> Round:
    model = Model.initial(arrays())
    sessions = [Session(e, terms, model.layout) for e in group(size, collusion=collusion)]
    return Round(sessions, model, [part(s, model, **how) for s in sessions])


# --- a round that works ---


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("masking", ["double", "single"])
def test_all_members_open_one_model(size: int, masking: Any) -> None:
    played = play(size, dataclasses.replace(TERMS, masking=masking))
    total = played.total(*range(size))
    opened = [s.open(played.model, total, ignore) for s in played.sessions]
    bytes_of = {b"".join(model.chunks()) for model, _ in opened}
    assert len(bytes_of) == 1
    model, totals = opened[0]
    assert (model.round, totals.count, totals.weight) == (1, size, 10 * size)
    step = 0.1 * (size + 1) / 2
    assert model.masters["w"] == pytest.approx(arrays()["w"] + step, abs=size * 10 / 2**15)
    assert totals.metrics["loss"] == pytest.approx(size / 2, abs=1e-4)
    assert totals.integers == [math.floor((size - 1) / 2 + 0.5)]
    assert model.masters["steps"] == 10 + totals.integers[0]
    assert model.masters["bn.running_var"] >= 0
    assert model.masters["empty"].shape == (0, 2)


def test_the_mean_is_weighted_by_examples() -> None:
    model = Model.initial(arrays())
    sessions = [Session(e, TERMS, model.layout) for e in group(3)]
    counts = (100, 50, 50)
    parts = [part(s, model, examples=n) for s, n in zip(sessions, counts, strict=True)]
    after, totals = sessions[0].open(model, Round(sessions, model, parts).total(0, 1, 2), ignore)
    assert totals.weight == 200
    assert after.masters["w"] == pytest.approx(arrays()["w"] + 0.175, abs=1e-3)


def test_unweighted_terms_let_no_count_travel() -> None:
    played = play(3, dataclasses.replace(TERMS, weighted=False), examples=123_456_789)
    _, totals = played.sessions[0].open(played.model, played.total(0, 1, 2), ignore)
    assert (totals.count, totals.weight) == (3, 3)


def test_prepared_masks_are_the_ones_used() -> None:
    played = play(3)
    session = played.sessions[1]
    slot = session.slot(played.model, 1, 0)
    encoded = session.encode(played.model, trained(1), 10, {}, bytes(32))
    plain = session.seal(session.sealer(), encoded, slot, ignore)
    ahead = session.sealer()
    session.prepare(ahead, played.model, slot, "")
    assert session.seal(ahead, encoded, slot, ignore).digest() == plain.digest()


def test_opening_leaves_the_old_model_alone() -> None:
    played = play(3)
    before = b"".join(played.model.chunks())
    played.open(played.total(0, 1, 2))
    assert b"".join(played.model.chunks()) == before


def test_rounds_that_came_to_nothing_leave_no_trace() -> None:
    played = play(3)
    again = Round(
        played.sessions, played.model, [part(s, played.model, round_=4) for s in played.sessions]
    )
    after = again.open(again.total(0, 1, 2))
    assert after.round == 4
    assert after.history == next_history(played.model.history, again.total(0, 1, 2).digest())
    for done in (1, 3, 4):  # and nobody goes back to them
        total = with_slot(again.total(0, 1, 2), round=done, history=after.history)
        with pytest.raises(ProtocolError, match="model is at round 4"):
            again.open(total, model=after)


@pytest.mark.parametrize("name", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_moments_are_the_same_everywhere_and_go_on(name: Any) -> None:
    momentum = {"momentum": 0.9} if name == "fedavgm" else {}
    optimizer = ServerOptimizer(name, eta=0.5, **momentum)
    played = play(3, dataclasses.replace(TERMS, optimizer=optimizer))
    total = played.total(0, 1, 2)
    opened = [session.open(played.model, total, ignore)[0] for session in played.sessions]
    assert len({encoded(model) for model in opened}) == 1
    first = opened[0]
    assert tuple(first.moments) == optimizer.moments
    assert all(moment.any() for moment in first.moments.values())
    parts = [part(s, first, round_=2) for s in played.sessions]
    again = Round(played.sessions, first, parts)
    second = again.open(again.total(0, 1, 2), rank=1)
    stored = Model.from_bytes(encoded(first))
    assert encoded(again.open(again.total(0, 1, 2), rank=2, model=stored)) == encoded(second)
    lost = dataclasses.replace(first, moments={})  # the same arrays and another memory
    with pytest.raises(ProtocolError, match="or other weights"):
        again.open(again.total(0, 1, 2), rank=2, model=lost)


def test_moments_of_another_optimizer_do_not_go_on() -> None:
    played = play(3, dataclasses.replace(TERMS, optimizer=ServerOptimizer("fedadam")))
    foreign = {"v": np.zeros(played.model.layout.floats, np.float32)}
    odd = dataclasses.replace(played.model, moments=foreign)
    again = Round(played.sessions, odd, [part(s, odd) for s in played.sessions])
    with pytest.raises(ProtocolError, match="another"):
        again.open(again.total(0, 1, 2))


# --- what a model is known by ---


def test_a_digest_is_the_same_for_members_with_the_same_model() -> None:
    played = play(3)
    model = played.model
    [digest] = {session.digest(model) for session in played.sessions}
    assert len(digest) == 32
    last = {**model.masters, "w": model.masters["w"].copy()}
    last["w"][2, 3] = np.nextafter(last["w"][2, 3], np.float32(0))
    others = [
        dataclasses.replace(model, masters=last),
        dataclasses.replace(model, round=1),
        dataclasses.replace(model, history=bytes(32)),
        dataclasses.replace(model, moments={"v": np.zeros(model.layout.floats, np.float32)}),
        dataclasses.replace(model, memory={"v": np.zeros(1)}),
        dataclasses.replace(model, memory={"v": np.full(1, 5e-324)}),
    ]
    digests = {digest, *(played.sessions[0].digest(other) for other in others)}
    assert len(digests) == 1 + len(others)


def test_a_digest_says_nothing_without_the_key() -> None:
    model = Model.initial(arrays())
    here, there = group(3)[0], group(3, number=2)[0]
    strange = dataclasses.replace(here, group_key=bytes(32))
    sessions = [Session(epoch, TERMS, model.layout) for epoch in (here, there, strange)]
    assert len({session.digest(model) for session in sessions}) == 3


def drifted(model: Model) -> Model:
    """The model as a member has it whose memory failed: another bit, the same history."""
    w = model.masters["w"].copy()
    w[0, 0] = np.nextafter(w[0, 0], np.float32(0))
    return dataclasses.replace(model, masters={**model.masters, "w": w})


@pytest.mark.parametrize("odd", [{0}, {2}, {0, 1}, {1, 2}])
def test_a_sender_that_started_from_another_model(odd: set[int]) -> None:
    played = play(3)
    parts = [
        part(s, drifted(played.model) if s.epoch.rank in odd else played.model)
        for s in played.sessions
    ]
    again = Round(played.sessions, played.model, parts)
    with pytest.raises(ProtocolError, match="slot"):
        again.total(0, 1, 2)
    # Nor where a relay writes one slot over the others: the masks are those of two.
    right = next(p for rank, p in enumerate(parts) if rank not in odd).slot
    lied = [dataclasses.replace(p, slot=right) for p in parts]
    refused(
        again, Round(played.sessions, played.model, lied).total(0, 1, 2), ProtocolError, "refused"
    )
    whole = [rank for rank in range(3) if rank not in odd]
    if len(whole) == 2:
        assert again.open(again.total(*whole)).round == 1


def test_a_reader_whose_model_is_not_the_senders() -> None:
    played = play(3)
    total = played.total(0, 1, 2)
    other = drifted(played.model)
    with pytest.raises(ProtocolError, match="or other weights"):
        played.open(total, model=other)
    session = played.sessions[0]
    known = session.digest(played.model)
    assert encoded(session.open(played.model, total, ignore, known)[0]) == encoded(
        played.open(total)
    )
    with pytest.raises(ProtocolError, match="or other weights"):
        session.open(played.model, total, ignore, session.digest(other))


# --- before a mask is claimed ---


def poisoned(value: float) -> dict[str, NDArray[Any]]:
    out = trained(0)
    out["w"][1, 2] = value
    return out


REFUSED: dict[str, tuple[Callable[[], dict[str, NDArray[Any]]], int, type[FlheError], str]] = {
    "nan": (lambda: poisoned(math.nan), 10, NotFiniteError, "NaN or infinity"),
    "infinity": (lambda: poisoned(math.inf), 10, NotFiniteError, "NaN or infinity"),
    "clipped": (
        lambda: {**trained(0), "w": np.full((3, 4), 50, np.float32)},
        10,
        ClippedError,
        "more than half",
    ),
    "no examples": (lambda: trained(0), 0, ExamplesError, "no training examples"),
    "negative examples": (lambda: trained(0), -3, ExamplesError, "number of examples that is not"),
    "far too many": (lambda: trained(0), 1 << 40, ExamplesError, "number of examples that is not"),
    "a layer less": (
        lambda: {"w": trained(0)["w"]},
        10,
        ReplyError,
        "lacks array 'half'",
    ),
    "another type": (
        lambda: {**trained(0), "w": np.zeros((3, 4))},
        10,
        ReplyError,
        "'w' of the app's reply is float64",
    ),
    "an integer far off": (
        lambda: {**trained(0), "steps": np.array(1 << 40)},
        10,
        RangeError,
        "'steps'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_a_mask_is_claimed(name: str) -> None:
    """A client that may not send must not have spent its mask, or its round would be lost."""
    make, examples, error, message = REFUSED[name]
    session = Session(group(3)[0], TERMS, Model.initial(arrays()).layout)
    model = Model.initial(arrays())
    claims: list[tuple[int, int]] = []
    with pytest.raises(error, match=message):
        session.seal(
            session.sealer(),
            session.encode(model, make(), examples, {}, session.digest(model)),
            session.slot(model, 1, 0),
            lambda *claim: claims.append(claim),
        )
    assert claims == []


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, event: str) -> Callable[..., None]:
        return lambda *_: self.events.append(event)


def test_claim_comes_before_encryption() -> None:
    played, log = play(3), Log()
    session = played.sessions[0]
    encoded = session.encode(played.model, trained(0), 10, {}, bytes(32))
    slot = session.slot(played.model, 1, 4)
    claims: list[tuple[int, int]] = []

    class Watched:
        rank = 0

        def prepare(self, slot: Slot, length: int, mode: str = "") -> None: ...

        def encrypt(
            self, plain: Plain, slot: Slot, *, mode: str = "", support: Support | None = None
        ) -> Sealed:
            log("encrypt")()
            return session.sealer().encrypt(plain, slot, mode=mode, support=support)

    def claim(round_: int, attempt: int) -> None:
        claims.append((round_, attempt))
        log("claim")()

    session.seal(Watched(), encoded, slot, claim)
    assert log.events == ["claim", "encrypt"]
    assert claims == [(1, 4)]

    def taken(round_: int, attempt: int) -> None:
        raise ReuseError("claimed before")

    log.events.clear()
    with pytest.raises(ReuseError, match="claimed before"):
        session.seal(Watched(), encoded, slot, taken)
    assert log.events == []


# --- before a sum is opened ---


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Record of every decryption, wherever a session opens one."""
    watched = Log()
    real = session_module.opener_for

    def opener_for(*args: Any, **kwargs: Any) -> Any:
        opener = real(*args, **kwargs)

        class Watched:
            def decrypt(self, total: Sealed) -> Any:
                watched.events.append("decrypt")
                return opener.decrypt(total)

        return Watched()

    for module in (session_module, ranges_module):
        monkeypatch.setattr(module, "opener_for", opener_for)
    return watched


def test_a_sum_is_recorded_before_it_is_decrypted(log: Log) -> None:
    played = play(3)
    total = played.total(0, 1, 2)
    records: list[tuple[int, bytes, str]] = []

    def record(round_: int, digest: bytes, what: str) -> None:
        log.events.append("record")
        records.append((round_, digest, what))

    played.sessions[0].open(played.model, total, record)
    assert log.events == ["record", "decrypt"]
    assert records == [(1, total.digest(), SUM)]


class OneOpening:
    """The rule of the store, in memory: one result a round, and one sum of mean squares."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], bytes] = {}

    def __call__(self, round_: int, digest: bytes, what: str) -> None:
        if self.seen.setdefault((round_, what), digest) != digest:
            raise ReuseError("another result of this round was opened before")


def test_a_second_sum_of_a_round_is_never_decrypted(log: Log) -> None:
    """Two sums of one round differ by single updates."""
    played, record = play(5), OneOpening()
    session = played.sessions[0]
    session.open(played.model, played.total(0, 1, 2), record)
    session.open(played.model, played.total(2, 1, 0), record)
    assert log.events == ["decrypt", "decrypt"]
    retry = Round(
        played.sessions, played.model, [part(s, played.model, 1) for s in played.sessions]
    )
    for total in (played.total(0, 1), played.total(0, 1, 2, 3), retry.total(0, 1, 2)):
        with pytest.raises(ReuseError):
            session.open(played.model, total, record)
    assert log.events == ["decrypt", "decrypt"]


def with_slot(total: Sealed, **change: Any) -> Sealed:
    return dataclasses.replace(total, slot=dataclasses.replace(total.slot, **change))


NOT_NEXT: dict[str, tuple[Callable[[Sealed], Sealed], str]] = {
    "round 0": (lambda t: with_slot(t, round=0), "round 0, this node's model is at round 0"),
    "another run": (lambda t: with_slot(t, run_id=RUN + 1), "belongs to another"),
    "another roster": (lambda t: with_slot(t, roster_hash=bytes(32)), "belongs to another"),
    "another epoch": (lambda t: with_slot(t, epoch=bytes(16)), "belongs to another"),
    "another layout": (lambda t: with_slot(t, layout_hash=bytes(32)), "belongs to another"),
    "another history": (lambda t: with_slot(t, history=bytes(32)), "another history"),
    "another length": (lambda t: dataclasses.replace(t, length=t.length + 1), "another length"),
}


def refused(played: Round, total: Sealed, error: type[FlheError], message: str) -> list[str]:
    """Open `total`, expect a refusal that changes nothing, and give back what was recorded."""
    before = b"".join(played.model.chunks())
    recorded: list[str] = []
    with pytest.raises(error, match=message):
        played.sessions[0].open(played.model, total, lambda *_: recorded.append("record"))
    assert b"".join(played.model.chunks()) == before
    return recorded


@pytest.mark.parametrize("name", NOT_NEXT)
def test_a_sum_that_is_not_the_next_one(name: str, log: Log) -> None:
    change, message = NOT_NEXT[name]
    played = play(3)
    assert refused(played, change(played.total(0, 1, 2)), ProtocolError, message) == []
    assert log.events == []


def test_a_sum_of_another_epoch_of_the_same_group(log: Log) -> None:
    played = play(3)
    others = [Session(e, TERMS, played.model.layout) for e in group(3, number=2)]
    foreign = Round(others, played.model, [part(s, played.model) for s in others])
    assert refused(played, foreign.total(0, 1, 2), ProtocolError, "belongs to another") == []
    # The server may relabel it; then the key is not the one that masked it.
    slot = played.sessions[0].slot(played.model, 1, 0)
    relabelled = dataclasses.replace(foreign.total(0, 1, 2), slot=slot)
    refused(played, relabelled, ProtocolError, "refused")


@pytest.mark.parametrize(("collusion", "need"), [(0, 2), (1, 3), (2, 4)])
def test_too_few_senders_are_never_decrypted(collusion: int, need: int, log: Log) -> None:
    played = play(5, collusion=collusion)
    for few in range(1, need):
        total = played.total(*range(few))
        assert refused(played, total, QuorumError, f"none of fewer than {need}") == []
    assert log.events == []
    assert played.open(played.total(*range(need))).round == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda t: dataclasses.replace(t, scheme="eshe"),
        lambda t: dataclasses.replace(t, senders=(0, 1, 7)),
        lambda t: dataclasses.replace(t, data=t.data[:-1]),
        lambda t: dataclasses.replace(t, mode="double"),
        lambda t: dataclasses.replace(t, mode="triple"),
        lambda t: dataclasses.replace(t, supports=(Support.of(SOME, 15),) * 3),
        lambda t: dataclasses.replace(t, supports=(Support.of(SOME, 16),) * 3),
    ],
    ids=["scheme", "stranger", "cut short", "mode", "no mode", "supports", "another length"],
)
def test_what_can_be_seen_to_be_wrong_does_not_spend_the_opening(
    change: Callable[[Sealed], Sealed], log: Log
) -> None:
    """Else one damaged message would cost the round: the true sum is then 'another result'."""
    played, record = play(3), OneOpening()
    with pytest.raises(ProtocolError):
        played.sessions[0].open(played.model, change(played.total(0, 1, 2)), record)
    assert played.sessions[0].open(played.model, played.total(0, 1, 2), record)[0].round == 1


# --- after it was decrypted ---


@pytest.mark.parametrize("senders", [(0, 1), (0, 2), (0, 1, 3), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_a_wrong_list_of_senders_is_refused(senders: tuple[int, ...]) -> None:
    played = play(5)
    lie = dataclasses.replace(played.total(0, 1, 2), senders=senders)
    refused(played, lie, ProtocolError, "refused")


@pytest.mark.parametrize("slot", [{"attempt": 1}, {"attempt": 7}, {"round": 2}, {"round": 9}])
def test_a_sum_relabelled_to_another_attempt_or_round_is_refused(slot: dict[str, int]) -> None:
    played = play(3)
    refused(played, with_slot(played.total(0, 1, 2), **slot), ProtocolError, "refused")


def test_altered_ciphertext_is_refused() -> None:
    """As far as sums say of themselves: a value out of reach, a count or a weight that is not one."""
    played = play(3)
    bits = 18
    whole = played.total(0, 1, 2)
    floats = played.model.layout.floats
    count = floats * bits  # the first limb of the count
    for at, by in ((0, bits - 1), (count, 0), (count, 5), (count + bits, bits - 1)):
        altered = whole.data.copy()
        position = at + by
        altered[position // 8] ^= np.uint8(1 << (position % 8))
        refused(played, dataclasses.replace(whole, data=altered), ProtocolError, "refused")
    rng = np.random.default_rng(1)
    noise = dataclasses.replace(whole, data=rng.integers(0, 256, whole.data.size, np.uint8))
    refused(played, noise, ProtocolError, "refused")
    refused(
        played, dataclasses.replace(whole, data=np.zeros_like(whole.data)), ProtocolError, "refused"
    )
    doubled = played.sessions[0].scheme.packing.add  # type: ignore[attr-defined]
    twice = whole.data.copy()
    doubled(twice, whole.data, whole.length)
    refused(played, dataclasses.replace(whole, data=twice), ProtocolError, "refused")


def test_another_groups_key_does_not_open() -> None:
    played = play(3)
    stranger = dataclasses.replace(group(3)[0], group_key=bytes(32))
    session = Session(stranger, TERMS, played.model.layout)
    with pytest.raises(ProtocolError, match="or other weights"):  # digests are keyed too
        session.open(played.model, played.total(0, 1, 2), ignore)
    right = session.slot(played.model, 1, 0)
    lied = dataclasses.replace(played.total(0, 1, 2), slot=right)
    with pytest.raises(ProtocolError, match="refused"):
        session.open(played.model, lied, ignore)


def test_members_with_other_terms_do_not_add_up() -> None:
    played = play(3)
    same = part(Session(group(3)[2], TERMS, played.model.layout), played.model)
    assert played.sessions[0].scheme.add(played.total(0, 1), same).senders == (0, 1, 2)
    for change in ({"clip": 2.0}, {"max_examples": 99}, {"metrics": ()}, {"masking": "single"}):
        terms = dataclasses.replace(TERMS, **change)
        odd = part(Session(group(3)[2], terms, played.model.layout), played.model)
        with pytest.raises(ProtocolError, match="slot"):
            played.sessions[0].scheme.add(played.total(0, 1), odd)


# --- rounds of several stages ---


KINDS: dict[str, dict[str, Any]] = {
    "sparse": {"top_k": 0.3, "warmup": 0},
    "sparse, in the clear": {"top_k": 0.3, "warmup": 0, "permute": False},
    "sparse, all of it": {"top_k": 1.0},
    "sparse, history": {"top_k": 0.3, "warmup": 0, "clip": "history"},
    "sparse, exchange": {"top_k": 0.3, "warmup": 0, "clip": "exchange"},
    "dense, history": {"clip": "history"},
    "dense, exchange": {"clip": "exchange"},
}
MASKINGS = [("double", ""), ("single", ""), ("adaptive", "double"), ("adaptive", "single")]


class Staged:
    """A round of several stages, up to its sum."""

    def __init__(
        self,
        sessions: list[Session],
        model: Model,
        round_: int = 1,
        residuals: Sequence[NDArray[np.float32] | None] = (),
        attempt: int = 0,
        mode: str = "",
        rangers: Sequence[int] | None = None,
    ) -> None:
        self.sessions, self.model, self.mode = sessions, model, mode
        self.first = first = sessions[0]
        self.round, self.attempt = round_, attempt
        told = {"loss": 0.5, "patients": 3.0}
        kept = residuals or [None] * len(sessions)
        self.drafts = [
            s.draft(model, trained(s.epoch.rank), 10, told, round_, residual)
            for s, residual in zip(sessions, kept, strict=True)
        ]
        self.ranges: Sealed | None = None
        self.squares: list[Sealed] = []
        if first.needs_ranges(model):
            self.squares = [self.square(s, draft) for s, draft in self._pairs()]
            chosen = range(len(sessions)) if rangers is None else rangers
            self.ranges = self.sum_of([self.squares[rank] for rank in chosen])
        self.slot = first.slot(model, round_, attempt, self.ranges)
        self.parts = [self.part(s, draft) for s, draft in self._pairs()]

    def _pairs(self) -> list[tuple[Session, Draft]]:
        return list(zip(self.sessions, self.drafts, strict=True))

    def square(self, session: Session, draft: Draft) -> Sealed:
        slot = session.ranges_slot(self.model, self.round, self.attempt)
        plain = encode(session, self.model, draft, session.digest(self.model))
        mode = "double" if session.terms.masking == "adaptive" else ""
        return session.seal(session.sealer(), plain, slot, ignore, mode)

    def part(self, session: Session, draft: Draft) -> Sealed:
        digest = session.digest(self.model)
        state = fit(session, self.model, self.round, self.ranges, ignore, digest)
        plain, support = session.encode_draft(draft, self.model, state, self.slot, digest)
        assert (support is None) == (not session.terms.sparse)
        if support is not None:
            assert support == session.support(draft, self.slot)
        return session.seal(session.sealer(), plain, self.slot, ignore, self.mode, support)

    def sum_of(self, parts: Sequence[Sealed]) -> Sealed:
        scheme, total = self.first.scheme, None
        for one in parts:
            total = scheme.add(total, one)
        assert total is not None
        return scheme.close(total)

    def total(self, *senders: int) -> Sealed:
        return self.sum_of([self.parts[rank] for rank in senders])

    def open(self, total: Sealed, rank: int = 0, record: Any = ignore, **how: Any) -> Model:
        how = {"ranges": self.ranges, **how}
        return self.sessions[rank].open(self.model, total, record, None, **how)[0]


def stage(size: int, kind: str, masking: Any = "double", **how: Any) -> Staged:
    terms = dataclasses.replace(TERMS, masking=masking, **KINDS[kind])
    model = Model.initial(arrays())
    return Staged([Session(e, terms, model.layout) for e in group(size)], model, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("masking", "mode"), MASKINGS)
def test_all_members_open_one_model_of_a_staged_round(kind: str, masking: Any, mode: str) -> None:
    played = stage(4, kind, masking, mode=mode)
    total = played.total(0, 1, 3)
    assert bool(total.supports) == played.first.terms.sparse
    opened = [played.open(total, rank) for rank in range(4)]
    assert len({encoded(model) for model in opened}) == 1
    sent = np.zeros((3, played.model.layout.floats))
    for row, rank in zip(sent, (0, 1, 3), strict=True):
        draft = played.drafts[rank]
        row[slice(None) if draft.coords is None else draft.coords] = draft.values
    mean = sent.mean(axis=0)
    change, _ = played.model.layout.change(opened[0].arrays(), played.model.masters)
    after = {n: a for n, a in opened[0].masters.items() if n != "bn.running_var"}
    change = np.concatenate(
        [
            np.ravel(a.astype(np.float64) - played.model.masters[n])
            for n, a in after.items()
            if a.dtype.kind == "f"
        ]
    )
    mean = np.delete(mean, [14])  # a variance, which may not become negative
    np.testing.assert_allclose(change, mean, rtol=0, atol=1e-2 if "history" in kind else 5e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_staged_rounds_go_on_from_what_was_remembered(kind: str) -> None:
    """A model off the disk, with its memory, opens the next round as the others do."""
    played = stage(3, kind)
    first = played.open(played.total(0, 1, 2))
    stored = Model.from_bytes(encoded(first))
    assert encoded(stored) == encoded(first)
    remembers = {
        *(["clip.mean-square"] if "history" in kind else []),
        *(["topk.rounds"] if "sparse" in kind else []),
    }
    assert {name.split(".")[0] for name in first.memory} == {n.split(".")[0] for n in remembers}
    residuals = [draft.residual for draft in played.drafts]
    again = Staged(played.sessions, first, 2, residuals)
    assert (again.ranges is not None) == ("exchange" in kind)
    second = again.open(again.total(0, 1))
    digest = played.sessions[2].digest(stored)
    alike, _ = played.sessions[2].open(stored, again.total(0, 1), ignore, digest, again.ranges)
    assert encoded(alike) == encoded(second)
    if first.memory:
        lost = dataclasses.replace(first, memory={})
        with pytest.raises(ProtocolError):
            played.sessions[2].open(lost, again.total(0, 1), ignore, None, again.ranges)


def test_which_rounds_have_stages() -> None:
    model = Model.initial(arrays())
    first = {}
    for kind, terms in {"dense": {}, **KINDS}.items():
        session = Session(group(3)[0], dataclasses.replace(TERMS, **terms), model.layout)
        first[kind] = session.staged(model), session.needs_ranges(model)
    assert first.pop("dense") == (False, False)
    for kind, found in first.items():
        assert found == (True, "history" in kind or "exchange" in kind)
    for kind, ranges in (("dense, history", False), ("dense, exchange", True)):
        played = stage(3, kind)
        after = played.open(played.total(0, 1, 2))
        assert played.first.staged(after) == ranges
        assert played.first.needs_ranges(after) == ranges


@pytest.mark.parametrize("kind", ["sparse, exchange", "dense, exchange", "dense, history"])
def test_both_sums_are_recorded_before_they_are_decrypted(kind: str, log: Log) -> None:
    played = stage(3, kind)
    total = played.total(0, 1, 2)
    assert played.ranges is not None
    log.events.clear()
    records: list[tuple[int, bytes, str]] = []

    def record(round_: int, digest: bytes, what: str) -> None:
        log.events.append("record")
        records.append((round_, digest, what))

    played.open(total, record=record)
    assert log.events == ["record", "decrypt", "record", "decrypt"]
    assert records == [(1, played.ranges.digest(), RANGES), (1, total.digest(), SUM)]


def test_a_second_sum_of_mean_squares_is_never_decrypted(log: Log) -> None:
    played, record = stage(4, "sparse, exchange"), OneOpening()
    digest = played.first.digest(played.model)
    fit(played.first, played.model, 1, played.ranges, record, digest)
    fewer = played.sum_of(played.squares[:3])
    retry = stage(4, "sparse, exchange", attempt=1)
    log.events.clear()
    for other in (fewer, retry.ranges):
        with pytest.raises(ReuseError):
            fit(played.first, played.model, 1, other, record, digest)
    assert log.events == []
    fit(played.first, played.model, 1, played.ranges, record, digest)
    assert log.events == ["decrypt"]
    assert played.open(played.total(0, 1, 2), record=record).round == 1


def test_mean_squares_of_an_earlier_attempt_will_do() -> None:
    """Its sum may be recorded already, so the next attempt has to go by it."""
    played = stage(3, "sparse, exchange")
    again = stage(3, "sparse, exchange", attempt=1)
    again.ranges = played.ranges
    again.slot = again.first.slot(again.model, 1, 1, played.ranges)
    again.parts = [again.part(s, draft) for s, draft in again._pairs()]
    assert again.open(again.total(0, 2), rank=1).round == 1


NOT_THESE: dict[str, tuple[Callable[[Staged], Sealed | None], type[FlheError], str]] = {
    "none": (lambda p: None, ProtocolError, "missing"),
    "too few": (lambda p: p.squares[0], QuorumError, "none of fewer than 2"),
    "a part as a sum": (
        lambda p: dataclasses.replace(p.squares[0], senders=(0, 1, 2)),
        ProtocolError,
        "refused|does not hold|another model",
    ),
    "other senders": (
        lambda p: dataclasses.replace(p.sum_of(p.squares), senders=(0, 1)),
        ProtocolError,
        "refused|does not hold|another model",
    ),
    "the sum of updates": (lambda p: p.total(0, 1, 2), ProtocolError, "belongs to another"),
    "another round": (
        lambda p: with_slot(p.sum_of(p.squares), round=0),
        ProtocolError,
        "model is at round 0",
    ),
    "a later round": (
        lambda p: Staged(p.sessions, p.model, 2).ranges,
        ProtocolError,
        "belongs to another",
    ),
    "another history": (
        lambda p: with_slot(p.sum_of(p.squares), history=bytes(32)),
        ProtocolError,
        "another history",
    ),
    "another epoch": (
        lambda p: with_slot(p.sum_of(p.squares), epoch=bytes(16)),
        ProtocolError,
        "belongs to another",
    ),
    "another scheme": (
        lambda p: dataclasses.replace(p.sum_of(p.squares), scheme="eshe"),
        ProtocolError,
        "another scheme",
    ),
    "cut short": (
        lambda p: dataclasses.replace(p.sum_of(p.squares), data=p.squares[0].data[:-1]),
        ProtocolError,
        "cut short",
    ),
    "a mode that is none": (
        lambda p: dataclasses.replace(p.sum_of(p.squares), mode="triple"),
        ProtocolError,
        "mode",
    ),
    "another length": (
        lambda p: dataclasses.replace(p.sum_of(p.squares), length=p.squares[0].length - 1),
        ProtocolError,
        "another length",
    ),
    "sparse": (
        lambda p: dataclasses.replace(
            p.sum_of(p.squares), supports=(Support.of(SOME, 15),) * len(p.squares)
        ),
        ProtocolError,
        "sparse",
    ),
}
SEEN = {*NOT_THESE} - {"a part as a sum", "other senders"}
"""What is refused before it is decrypted."""


@pytest.mark.parametrize("name", NOT_THESE)
def test_mean_squares_that_are_not_this_rounds(name: str, log: Log) -> None:
    change, error, message = NOT_THESE[name]
    played = stage(3, "sparse, exchange")
    ranges, digest = change(played), played.first.digest(played.model)
    log.events.clear()
    with pytest.raises(error, match=message):
        fit(played.first, played.model, 1, ranges, ignore, digest)
    assert log.events == ([] if name in SEEN else ["decrypt"])


def test_mean_squares_that_are_not_due() -> None:
    exchange, fixed = stage(3, "sparse, exchange"), stage(3, "sparse")
    with pytest.raises(ProtocolError, match="needs none"):
        fit(fixed.first, fixed.model, 1, exchange.ranges, ignore, bytes(32))
    with pytest.raises(ProtocolError, match="belongs to another"):
        fixed.open(fixed.total(0, 1, 2), ranges=exchange.ranges)


@pytest.mark.parametrize("odd", [{0}, {2}, {0, 1}])
def test_mean_squares_of_a_sender_with_another_model(odd: set[int]) -> None:
    played = stage(3, "sparse, exchange")
    other = Staged(played.sessions, drifted(played.model))
    squares = [(other if rank in odd else played).squares[rank] for rank in range(3)]
    with pytest.raises(ProtocolError, match="slot"):
        played.sum_of(squares)
    right = played.squares[0].slot
    lied = [dataclasses.replace(part, slot=right) for part in squares]
    total, digest = played.sum_of(lied), played.first.digest(played.model)
    with pytest.raises(ProtocolError):
        fit(played.first, played.model, 1, total, ignore, digest)


@pytest.mark.parametrize(("more", "message"), [(1, "one part from each"), (0, "another model")])
def test_mean_squares_of_a_member_that_lies(more: int, message: str) -> None:
    """Of its count, with the check to match, or of the model alone; its tags are right."""
    played = stage(3, "sparse, exchange")
    liar, model, digest = played.first, played.model, played.first.digest(played.model)
    quantize = Quantize(liar.terms.bits)
    plain = encode(liar, model, played.drafts[0], digest)
    told = quantize.join(plain.extras.astype(np.int64))
    told[COUNT] += more
    told[CHECK] += liar.check_of(digest) if more else 1
    lie = plain._replace(extras=quantize.split(told))
    part = liar.seal(liar.sealer(), lie, liar.ranges_slot(model, 1, 0), ignore)
    with pytest.raises(ProtocolError, match=message):
        fit(liar, model, 1, played.sum_of([part, *played.squares[1:]]), ignore, digest)


def test_mean_squares_that_no_senders_could_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    played = stage(3, "sparse, exchange")
    digest, honest = played.first.digest(played.model), ranges_module.open_verified
    monkeypatch.setattr(ranges_module, "open_verified", lambda *told: honest(*told) + 3 * 32767 + 1)
    with pytest.raises(ProtocolError, match="holds values that 3 senders cannot reach"):
        fit(played.first, played.model, 1, played.ranges, ignore, digest)


def test_updates_clipped_otherwise_do_not_add_up() -> None:
    """The sum that thresholds were fitted on is in the slot."""
    one = stage(4, "sparse, exchange")
    other = stage(4, "sparse, exchange", rangers=(0, 1, 2))
    assert one.slot != other.slot
    with pytest.raises(ProtocolError, match="slot"):
        one.sum_of([*one.parts[:2], other.parts[2]])
    for ranges in (other.ranges, None):
        with pytest.raises(ProtocolError):
            one.open(one.total(0, 1, 2), ranges=ranges)


def test_supports_of_another_model_are_refused() -> None:
    played = stage(3, "sparse")
    total = played.total(0, 1, 2)
    longer = tuple(Support.of(support.coords, 16) for support in total.supports)
    with pytest.raises(ProtocolError, match="of another model"):
        played.open(dataclasses.replace(total, supports=longer))


@pytest.mark.parametrize("masking", ["double", "single"])
def test_two_supports_swapped_are_refused(masking: Any) -> None:
    terms = dataclasses.replace(TERMS, masking=masking, **KINDS["sparse, in the clear"])
    model = Model.initial(arrays())
    sessions = [Session(e, terms, model.layout) for e in group(3)]
    rng = np.random.default_rng(7)
    apart = [np.float32(1 / 32) * rng.permutation(15).astype(np.float32) for _ in sessions]
    played = Staged(sessions, model, residuals=apart)
    total = played.total(0, 1, 2)
    assert len(set(total.supports)) == 3
    assert played.open(total).round == 1
    for order in ((1, 0, 2), (0, 2, 1), (2, 0, 1)):
        lie = dataclasses.replace(total, supports=tuple(total.supports[i] for i in order))
        with pytest.raises(ProtocolError, match="refused"):
            played.open(lie)


def test_a_dense_sum_where_it_should_be_sparse() -> None:
    played = stage(3, "sparse")
    dense = dataclasses.replace(play(3).total(0, 1, 2), slot=played.slot)
    sparse = dataclasses.replace(played.total(0, 1, 2), slot=play(3).parts[0].slot)
    for rounds, total in ((played, dense), (play(3), sparse)):
        with pytest.raises(ProtocolError, match="sparse"):
            rounds.open(total)


def test_the_order_of_coordinates_is_a_secret_of_the_attempt() -> None:
    played = stage(3, "sparse")
    model, coords = played.model, np.arange(15, dtype=np.uint32)
    slots = [played.first.slot(model, r, a) for r, a in ((1, 0), (1, 1), (2, 0))]
    orders = set()
    for slot in slots:
        seen = {bytes(s.permutation(slot).forward(coords)) for s in played.sessions}  # type: ignore[union-attr]
        assert len(seen) == 1  # one for all members
        orders |= seen
    other = dataclasses.replace(group(3)[0], group_key=bytes(32))
    session = Session(other, played.first.terms, model.layout)
    orders.add(bytes(session.permutation(slots[0]).forward(coords)))  # type: ignore[union-attr]
    assert len(orders) == 4
    for kind in ("sparse, in the clear", "dense, history"):
        assert stage(3, kind).first.permutation(slots[0]) is None


@pytest.mark.parametrize("kind", ["sparse", "dense, exchange"])
@pytest.mark.parametrize("name", [n for n in REFUSED if n not in ("clipped",)])
def test_no_draft_is_made_of_what_cannot_be_sent(kind: str, name: str) -> None:
    make, examples, error, _ = REFUSED[name]
    session = stage(3, kind).first
    model = Model.initial(arrays())
    digest = session.digest(model)

    def send() -> None:
        draft = session.draft(model, make(), examples, {}, 1, None)
        slot = session.slot(model, 1, 0)
        if session.needs_ranges(model):
            encode(session, model, draft, digest)
            ranges = stage(3, kind).ranges
            slot = session.slot(model, 1, 0, ranges)
            session.encode_draft(
                draft, model, fit(session, model, 1, ranges, ignore, digest), slot, digest
            )
        else:
            state = fit(session, model, 1, None, ignore, digest)
            session.encode_draft(draft, model, state, slot, digest)

    with pytest.raises(error):
        send()


# --- what a session is ---


def test_a_cohort_without_room_is_refused_when_the_session_is_built() -> None:
    terms = Terms(max_examples=1 << 28)
    assert terms.for_cohort(5).cohort == 5
    crowd = dataclasses.replace(group(5)[0])
    object.__setattr__(crowd, "members", crowd.members * 4)
    with pytest.raises(MisfitError, match="63 bits"):
        Session(crowd, terms, Layout(()))


def test_the_slot_says_everything() -> None:
    played = play(3)
    session, model, other = played.sessions[1], played.model, drifted(played.model)
    slot = session.slot(model, 9, 5)
    epoch = session.epoch
    start = start_layout(session.layout_hash, UNTOLD, session.digest(model))
    assert slot == Slot(RUN, epoch.roster.hash, epoch.id, 9, 5, start, model.history)
    assert session.place(model, 9, 5) == dataclasses.replace(slot, layout_hash=session.layout_hash)
    told = session.slot(model, 9, 5, told=bytes([1]) * 32)
    hashes = {slot.layout_hash, told.layout_hash, session.slot(other, 9, 5).layout_hash}
    assert len(hashes) == 3
    assert {s.slot(model, 9, 5) for s in played.sessions} == {slot}


def test_no_repr_shows_a_key() -> None:
    session = play(3).sessions[0]
    for shown in (repr(session), repr(session.sealer())):
        assert repr(bytes(session.epoch.group_key))[2:-1] not in shown


@pytest.mark.parametrize(
    ("reached", "refused"), [(0, (3, 4, 37)), (4, (4, 37)), (5, (4, 38)), (40, (4, 73))]
)
def test_rounds_that_are_past_or_far_ahead(reached: int, refused: tuple[int, ...]) -> None:
    model = dataclasses.replace(Model.initial(arrays()), round=4)
    for round_ in (5, max(4, reached) + MAX_AHEAD):
        check_ahead(model, round_, reached)
    for round_ in refused:
        with pytest.raises(ProtocolError, match=f"round {round_} is not one of the 32 after"):
            check_ahead(model, round_, reached)
