"""Reading sums: the server makes of them what a member would, and half a model is never left behind."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flhe.coding.extras import Totals
from flhe.coding.quantize import Quantize
from flhe.errors import AuthenticationError, ConfigError, ProtocolError, QuorumError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine
from flhe.keys.agreement.circle import Circle
from flhe.keys.identity import Identity
from flhe.schemes.presets import sash_preset
from flhe.schemes.sash.scheme import Sash, SashSealer
from flhe.schemes.sealed import Sealed
from flhe.training import terms as terms_module
from flhe.training.model import Model
from flhe.training.optimizer import ServerOptimizer
from flhe.training.reading import ServerReader, finite, served
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training.test_session import arrays, drifted, encoded, group, ignore, trained

SERVER = Terms("sash", 0, max_examples=100, metrics=("loss",), unmask="server")
CLIENTS = dataclasses.replace(SERVER, unmask="clients")


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding that is the same each time: two runs then send the same integers."""
    monkeypatch.setattr(terms_module, "Quantize", lambda bits: Quantize(bits, "nearest"))


@functools.cache
def identities(size: int) -> list[Identity]:
    made = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(size)]
    return sorted(made, key=lambda identity: identity.public)


@dataclass
class Round:
    """A round of a group, uploaded; its sum is not yet opened by anybody."""

    sessions: list[Session]
    model: Model
    parts: list[Sealed]
    dealt: list[masking.Dealt]

    @property
    def scheme(self) -> Sash:
        scheme = self.sessions[0].scheme
        assert isinstance(scheme, Sash)
        return scheme

    @property
    def reader(self) -> ServerReader:
        return ServerReader(self.sessions[0].terms, self.scheme)

    @property
    def circle(self) -> Circle:
        first = self.sessions[0]
        return Circle.of(first.epoch, sash_preset(first.terms.preset).dimension)

    def open(self, model: Model, total: Sealed, answers: Sequence[bytes]) -> tuple[Model, Totals]:
        """As the server does."""
        seed = combine(self.circle, total.slot, total.senders, answers)
        return self.reader.open(model, total, seed)

    def total(self, senders: Sequence[int]) -> Sealed:
        total = None
        for rank in senders:
            total = self.scheme.add(total, self.parts[rank])
        assert total is not None
        return total

    def answers(self, senders: Sequence[int], of: Sequence[int] | None = None) -> list[bytes]:
        """What the senders' agreement releases; `of` answer, all of them by default."""
        elements = self.scheme.parameters_of_prg.dimension
        agreed, signatures = {}, {}
        for rank in senders:
            boxes = [self.dealt[u].boxes[rank] for u in senders]
            agreed[rank], signatures[rank] = masking.agree(
                self.sessions[rank].epoch,
                identities(len(self.sessions))[rank],
                self.dealt[rank],
                senders,
                boxes,
                elements,
            )
        return [
            masking.release(
                self.sessions[rank].epoch,
                identities(len(self.sessions))[rank],
                agreed[rank],
                list(signatures),
                list(signatures.values()),
                elements,
                sealed=self.sessions[rank].terms.reader == "clients",
            )
            for rank in (senders if of is None else of)
        ]

    def read(self, senders: Sequence[int], model: Model | None = None) -> tuple[Model, Totals]:
        answers = self.answers(senders)
        return self.open(model or self.model, self.total(senders), answers)

    def opened(self, rank: int, senders: Sequence[int]) -> tuple[Model, Totals]:
        answers = self.answers(senders)
        session = self.sessions[rank]
        return session.open(self.model, self.total(senders), ignore, None, None, answers)


def play(
    terms: Terms,
    size: int = 3,
    collusion: int = 0,
    model: Model | None = None,
    round_: int = 1,
    examples: Sequence[int] | None = None,
) -> Round:
    model = model or served(arrays(), 0)
    sessions = [Session(epoch, terms, model.layout) for epoch in group(size, collusion=collusion)]
    parts, dealt = [], []
    for rank, session in enumerate(sessions):
        told = {"loss": rank + 0.5, "patients": 3.0}
        count = 10 * (rank + 1) if examples is None else examples[rank]
        plain = session.encode(model, trained(rank), count, told, session.digest(model))
        slot, sealer = session.slot(model, round_, 0), session.sealer()
        assert isinstance(sealer, SashSealer)
        parts.append(session.seal(sealer, plain, slot, ignore))
        dealt.append(masking.deal(session.epoch, slot, sealer.take_seed(slot)))
    return Round(sessions, model, parts, dealt)


# --- the server reads as a member would ---


@pytest.mark.parametrize(
    ("size", "collusion", "senders"),
    [(3, 0, (0, 1)), (3, 0, (0, 1, 2)), (5, 1, (0, 1, 3, 4)), (5, 1, (0, 1, 2, 3, 4))],
)
@pytest.mark.parametrize("optimizer", ["fedavg", "fedadam"])
@pytest.mark.usefixtures("nearest")
def test_the_server_reads_what_a_member_opens(
    size: int, collusion: int, senders: tuple[int, ...], optimizer: Any
) -> None:
    chosen = ServerOptimizer(optimizer)
    here = play(dataclasses.replace(SERVER, optimizer=chosen), size, collusion)
    there = play(dataclasses.replace(CLIENTS, optimizer=chosen), size, collusion)
    model, totals = here.read(senders)
    for rank in (0, size - 1):
        other, told = there.opened(rank, senders)
        assert model.round == other.round == 1
        assert model.masters.keys() == other.masters.keys()
        for name, master in model.masters.items():
            assert master.dtype == other.masters[name].dtype
            assert np.array_equal(master, other.masters[name])
        assert {n: m.tobytes() for n, m in model.moments.items()} == {
            n: m.tobytes() for n, m in other.moments.items()
        }
        assert dataclasses.replace(told, check=0) == totals
        assert model.arrays().keys() == other.arrays().keys()
    weights = [10 * (rank + 1) for rank in senders]
    assert (totals.count, totals.weight, totals.check) == (len(senders), sum(weights), 0)
    loss = np.average([rank + 0.5 for rank in senders], weights=weights)
    assert totals.metrics["loss"] == pytest.approx(loss, abs=1e-3)
    if optimizer == "fedavg":
        step = np.average([0.1 * (rank + 1) for rank in senders], weights=weights)
        assert model.masters["w"] == pytest.approx(arrays()["w"] + step, abs=1e-4)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "fedyogi"])
@pytest.mark.usefixtures("nearest")
def test_rounds_follow_on_each_other(optimizer: Any) -> None:
    """Moments stay with the server; what members are told of a round is what the next starts from."""
    momentum = {"momentum": 0.9} if optimizer == "fedavgm" else {}
    terms = dataclasses.replace(SERVER, optimizer=ServerOptimizer(optimizer, **momentum))
    kept = served(arrays(), 0)
    for round_ in (1, 2, 4):
        before = encoded(kept)
        told = served(kept.arrays(), kept.round)
        assert told.history == kept.history
        played = play(terms, model=told, round_=round_)
        senders = (0, 1, 2) if round_ == 1 else (0, 2)
        after, totals = played.read(senders, kept)
        assert encoded(kept) == before  # the old model is left alone
        assert (after.round, totals.count) == (round_, len(senders))
        assert tuple(after.moments) == terms.optimizer.moments
        assert after.history == served(after.arrays(), round_).history
        kept = Model.from_bytes(encoded(after))  # and it survives a restart


def test_terms_and_digests_where_the_server_reads() -> None:
    here, there = play(SERVER), play(CLIENTS)
    for session in here.sessions:
        assert session.terms == SERVER.resolved(3)
        assert session.digest(here.model) == here.model.history
        assert session.check_of(here.model.history) == 0
    digests = {session.digest(there.model) for session in there.sessions}
    assert len(digests) == 1
    assert digests != {there.model.history}
    assert all(session.check_of(*digests) > 0 for session in there.sessions)
    assert here.sessions[0].layout_hash != there.sessions[0].layout_hash


def test_members_that_are_told_other_models_are_not_added_up() -> None:
    model = served(arrays(), 0)
    other = served(drifted(model).arrays(), 0)
    assert model.history != other.history
    here, there = play(SERVER, model=model), play(SERVER, model=other)
    with pytest.raises(ProtocolError, match="slot"):
        here.scheme.add(here.total((0, 1)), there.parts[2])


def test_what_is_told_of_a_model() -> None:
    model = served(arrays(), 7)
    assert (model.round, model.moments, model.memory) == (7, {}, {})
    assert model.history == served(arrays(), 0).history == Model.initial(arrays()).history
    with pytest.raises(ConfigError, match="'w'"):
        served({"w": np.zeros(3, np.complex64)}, 0)


# --- what is not read ---


def refused(played: Round, total: Sealed, answers: Sequence[bytes], error: Any, says: str) -> None:
    before = encoded(played.model)
    with pytest.raises(error, match=says):
        played.open(played.model, total, answers)
    assert encoded(played.model) == before


def test_answers_that_do_not_open_the_sum() -> None:
    played = play(SERVER, 5, 1)
    all_, four = (0, 1, 2, 3, 4), (0, 1, 2, 3)
    answers, fewer = played.answers(all_), played.answers(four)
    total = played.total(all_)
    need = played.circle.thresholds.threshold
    assert need == 4
    refused(played, total, answers[: need - 1], QuorumError, "3 answers to unmask, 4 are needed")
    refused(played, total, [], QuorumError, "0 answers")
    refused(played, total, [*answers[:4], answers[0]], ProtocolError, "two answers")
    refused(played, total, [*answers, answers[0]], ProtocolError, "more answers")
    refused(played, total, fewer, AuthenticationError, "signature")  # signed for another set
    refused(played, total, [b"x", *answers[1:]], ProtocolError, "answer to unmask")
    again = play(SERVER, 5, 1)  # the same round by other seeds
    refused(again, again.total(all_), answers, ProtocolError, "other seeds")
    for rank in all_:
        model, _ = played.open(played.model, total, answers[:rank] + answers[rank + 1 :])
        assert encoded(model) == encoded(played.open(played.model, total, answers)[0])


def test_answers_that_are_sealed_for_members_tell_the_server_nothing() -> None:
    played = play(CLIENTS)
    senders = (0, 1, 2)
    answers = played.answers(senders)
    refused(played, played.total(senders), answers, ProtocolError, "bytes, a share has")
    cut = [masking.dumps([rank, bytes(16384), bytes(64)]) for rank in senders]
    refused(played, played.total(senders), cut, AuthenticationError, "signature")


def test_a_sum_that_was_changed() -> None:
    played = play(SERVER)
    senders = (0, 1, 2)
    answers, total = played.answers(senders), played.total(senders)
    data = total.data.copy()
    data[0] ^= 4  # below the first value's lowest bit
    refused(played, dataclasses.replace(total, data=data), answers, ProtocolError, "altered")
    short = dataclasses.replace(total, data=total.data[:-4])
    refused(played, short, answers, ProtocolError, "bytes")
    lie = dataclasses.replace(total, senders=(0, 1))
    refused(played, lie, answers[:2], AuthenticationError, "signature")


def test_a_sum_that_does_not_decode_leaves_no_half_a_model() -> None:
    """The counts inside are of three senders, the header speaks of two whose seeds fit."""
    played = play(SERVER, examples=(100, 100, 100))
    scheme = played.scheme
    values = played.model.layout.floats
    total = played.total((0, 1))
    lanes = total.data.view("<u4")
    lanes[values:] += np.uint32(1 << scheme.guard)  # every digit of every extra
    refused(played, total, played.answers((0, 1)), ProtocolError, "refused")


def test_metrics_that_nobody_reported_are_left_out() -> None:
    assert finite({"loss": 0.5, "accuracy": math.nan, "f1": math.inf}) == {"loss": 0.5}


def test_a_reader_of_sums_has_no_key() -> None:
    played = play(SERVER)
    epoch = played.sessions[0].epoch
    for secret in (epoch.group_key, *(bytes(key) for key in epoch.pair_keys if key)):
        assert repr(bytes(secret))[2:-1] not in repr(played.reader)
    assert {field.name for field in dataclasses.fields(ServerReader)} == {
        "terms",
        "scheme",
    }
    assert {field.name for field in dataclasses.fields(Circle)} == {
        "run_id",
        "number",
        "roster_hash",
        "members",
        "colluders",
        "elements",
    }
