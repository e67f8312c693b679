"""Reading sums: the server makes of them what a member would, and half a model is never left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from flhe.coding.extras import Totals
from flhe.coding.quantize import NearestRounding, Quantize
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, ProtocolError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine
from flhe.keys.agreement.circle import SharingParameters
from flhe.schemes.sash.adder import SashAdder, SashSealer
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from flhe.training.terms import Terms
from flhe.training.update import ServerReader, finite, served
from tests.keys.masking import Told
from tests.training.rounds import Round, arrays, encoded, identities, ignore, trained
from tests.training.rounds import sessions as members

SERVER = Terms(Sash(unmask="server"), update_codec(bits=0, max_examples=100), metrics=("loss",))
CLIENTS = dataclasses.replace(SERVER, scheme=Sash("clients"))


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding that is the same each time: two runs then send the same integers."""
    monkeypatch.setattr(Quantize, "source", lambda _: NearestRounding())
    monkeypatch.setattr(Quantize, "offset", 0.0)


class Masked(Round):
    """A round of a group, uploaded; its sum is not yet opened by anybody."""

    def __init__(
        self,
        terms: Terms,
        size: int = 3,
        collusion: int = 0,
        examples: Sequence[int] = (10, 20, 30, 40, 50),
    ) -> None:
        model = served(arrays(), 0)
        super().__init__(members(terms, size, model, collusion=collusion), model, [])
        self.dealt = []
        for rank, session in enumerate(self.sessions):
            told = {"loss": rank + 0.5, "patients": 3.0}
            plain = session.encode(model, trained(rank), examples[rank], told)
            of, sealer = session.sum(model, 1, 0), session.sealer()
            assert isinstance(sealer, SashSealer)
            self.parts.append(of.contribute(session.epoch, sealer, plain, ignore))
            self.dealt.append(masking.deal(session.epoch, of.slot, sealer.take_seed(of.slot)))

    @property
    def circle(self) -> SharingParameters:
        return SharingParameters.of(self.first.epoch, SERVER.scheme.elements(3))

    def answers(self, senders: Sequence[int]) -> list[bytes]:
        """What the senders' agreement releases."""
        slot, epochs = self.parts[0].slot, tuple(s.epoch for s in self.sessions)
        who = tuple(identities(len(epochs)))
        told = Told(who, epochs, self.circle, slot, [], self.dealt, tuple(senders), {}, {})
        for rank in senders:
            told.agreed[rank], told.signatures[rank] = told.agree(rank, senders, told.inbox(rank))
        return told.releases(senders, sealed=self.first.terms.scheme.reader == "clients")

    def read(self, total: Sealed, answers: Sequence[bytes]) -> tuple[Model, Totals]:
        """As the server does."""
        seed = combine(self.circle, total.slot, total.senders, answers)
        adder = self.first.sums.adder
        assert isinstance(adder, SashAdder)
        return ServerReader(self.first.terms, adder).open(self.model, total, seed)


# --- the server reads as a member would ---


@pytest.mark.usefixtures("nearest")
def test_the_server_reads_what_a_member_opens() -> None:
    """To the bit, where an optimizer keeps moments too."""
    senders, adam = (0, 1, 3, 4), Optimizer("fedadam")
    here, there = (
        Masked(dataclasses.replace(terms, optimizer=adam), 5, 1) for terms in (SERVER, CLIENTS)
    )
    model, totals = here.read(here.total(*senders), here.answers(senders))
    total, answers = there.total(*senders), there.answers(senders)
    for rank in (0, 4):
        other, told = there.sessions[rank].open(there.model, total, ignore, None, None, answers)
        alike = dataclasses.replace(other, history=model.history, chain=())
        assert encoded(alike) == encoded(model)
        assert told == totals
    weights = [10 * (rank + 1) for rank in senders]
    assert (totals.count, totals.weight) == (len(senders), sum(weights))
    loss = np.average([rank + 0.5 for rank in senders], weights=weights)
    assert totals.metrics["loss"] == pytest.approx(loss, abs=1e-3)


def test_what_is_told_of_a_model() -> None:
    model = served(arrays(), 7)
    assert (model.round, model.moments, model.memory) == (7, {}, {})
    assert model.history == served(arrays(), 0).history == Model.initial(arrays()).history
    with pytest.raises(ConfigError, match="'w'"):
        served({"w": np.zeros(3, np.complex64)}, 0)


# --- what is not read ---


def test_a_sum_that_does_not_decode_leaves_no_half_a_model() -> None:
    """The counts inside are of three senders, the header speaks of two whose seeds fit."""
    played = Masked(SERVER, examples=(100, 100, 100))
    total = played.total(0, 1)
    lanes = total.data.view("<u4")
    lanes[played.model.layout.floats :] += np.uint32(
        1 << played.first.sums.adder.guard
    )  # every digit
    before = encoded(played.model)
    with pytest.raises(ProtocolError, match="refused"):
        played.read(total, played.answers((0, 1)))
    assert encoded(played.model) == before


def test_metrics_that_nobody_reported_are_left_out() -> None:
    assert finite({"loss": 0.5, "accuracy": float("nan"), "f1": float("inf")}) == {"loss": 0.5}
