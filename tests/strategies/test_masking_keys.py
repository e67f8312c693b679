"""Masking keys alone: a strategy and an app of one's own, and of flhe nothing but the agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg, Krum, __all__
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.math.ring import Q, add, subtract
from flhe.mods import MaskingKeyMod, masking_key
from flhe.strategies import MaskingKeyAgreement
from tests.patience import PATIENCE_S
from tests.source import ROOT
from tests.strategies.puppets import Puppets
from tests.strategies.variants import ALLOWED

pytestmark = pytest.mark.usefixtures("quick")

OWN = [3, 5, 7, 11]
"""What each partition keeps to itself."""


class App:
    """An app that masks one number; `leak` has its reply hold something more."""

    def __init__(self, leak: Callable[[NDArray[np.uint64]], Any] | None = None) -> None:
        self.leak, self.seeds = leak, list[NDArray[np.uint64]]()
        self.app = ClientApp(mods=[MaskingKeyMod()])
        self.app.train()(self.train)
        self.app.evaluate()(self.train)

    def train(self, message: Message, context: Context) -> Message:
        seed = masking_key(message)
        self.seeds.append(seed)
        number = np.full(seed.size, OWN[int(str(context.node_config["partition-id"]))], np.uint64)
        content = RecordDict({"out": ArrayRecord({"x": Array(add(number, seed))})})
        assert any(record.get("round") == 1 for record in message.content.config_records.values())
        content["metrics"] = MetricRecord({"num-examples": 1})
        if self.leak is not None:
            content["more"] = self.leak(seed)
        return Message(content, reply_to=message)


def nodes(path: Path, app: App) -> Puppets:
    return Puppets(path, 4, app.app, config=lambda _: ALLOWED)


def asked(keys: MaskingKeyAgreement, kind: str = "train") -> list[Message]:
    content = RecordDict({"settings": ConfigRecord({"round": 1})})
    return [Message(content, node, kind) for node in keys.get_node_ids()]


def added(replies: list[Message]) -> tuple[list[int], NDArray[np.uint64]]:
    """Who replied, and the sum of what they sent."""
    vectors = [reply.content.array_records["out"]["x"].numpy() for reply in replies]
    total = vectors[0]
    for vector in vectors[1:]:
        total = add(total, vector)
    return [reply.metadata.src_node_id for reply in replies], total


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def grid(tmp_path: Path, app: App) -> Iterator[Puppets]:
    with nodes(tmp_path, app) as made:
        yield made


@pytest.mark.parametrize("away", [[], [2]])
def test_the_sum_of_seeds_takes_the_sum_of_masks_off(
    grid: Puppets, app: App, away: list[int]
) -> None:
    with MaskingKeyAgreement(grid) as keys:
        for round_ in (1, 2):
            grid.unreached[round_, "masking-key"] = away
            who, total = added(keys.send_and_receive(asked(keys), timeout=PATIENCE_S))
            plain = subtract(total, keys.release(who))
            assert plain.shape == (keys.elements,)
            assert set(plain.tolist()) == {sum(OWN) - sum(OWN[i] for i in away)}
    # Fresh for each node and round: no mask is used twice.
    assert len({seed.tobytes() for seed in app.seeds}) == len(app.seeds) == 2 * (4 - len(away))
    assert all(int(seed.max()) < Q for seed in app.seeds)


def test_members_release_one_set_a_round(grid: Puppets) -> None:
    """A server that has two sums of one round would have a single reply."""
    with MaskingKeyAgreement(grid, retries=0) as keys:
        who, _ = added(keys.send_and_receive(asked(keys), timeout=PATIENCE_S))
        attempt = keys._survey.attempt
        kept = dict(attempt.shares)
        with pytest.raises(QuorumError, match="a sum needs 3"):
            keys.release(who[:2])
        with pytest.raises(ProtocolError, match="came in this round"):
            keys.release([*who, 999])
        keys.release(who)
        with pytest.raises(ProtocolError, match="once"):
            keys.release(who[1:])
        keys._survey.ledger.phase, attempt.shares = "training", dict(kept)  # a server that lies
        with pytest.raises(QuorumError, match="flhe/reuse"):
            keys.release(who[1:])


def test_nodes_do_no_round_twice(grid: Puppets, app: App) -> None:
    """Nor one that is behind: the app is not even called."""
    with MaskingKeyAgreement(grid) as keys:
        for _ in range(2):
            keys.release(added(keys.send_and_receive(asked(keys), timeout=PATIENCE_S))[0])
        calls = len(app.seeds)
        for number in (1, 2, 2 + 33, 1):
            keys._survey.membership.asked = number == 2  # with new keys from there on
            keys._survey.ledger.round = number - 1
            assert keys.send_and_receive(asked(keys), timeout=PATIENCE_S) == []
        assert len(app.seeds) == calls


@pytest.mark.parametrize("strategy", [FedTrimmedAvg, Krum])
@pytest.mark.parametrize("rounds", [1, 2])
def test_strategies_that_look_at_single_updates_are_refused(
    grid: Puppets, strategy: type[FedAvg], rounds: int
) -> None:
    """What they make of masked replies is noise."""
    one = strategy(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
    model, told = ArrayRecord({"x": Array(np.zeros(2048))}), ConfigRecord({"round": 1})
    with (
        pytest.raises(ConfigError, match="single updates"),
        MaskingKeyAgreement(grid, retries=0) as keys,
    ):
        one.start(keys, model, num_rounds=rounds, train_config=told, timeout=PATIENCE_S)


LEAKS: dict[str, Callable[[NDArray[np.uint64]], Any]] = {
    "in an array": lambda seed: ArrayRecord({"s": Array(seed)}),
    "in a config": lambda seed: ConfigRecord({"s": [b"", b"x" + seed.tobytes()]}),
}


@pytest.mark.parametrize("how", LEAKS)
def test_a_reply_that_holds_its_key_stays(tmp_path: Path, how: str) -> None:
    with nodes(tmp_path, App(LEAKS[how])) as grid, MaskingKeyAgreement(grid) as keys:
        assert keys.send_and_receive(asked(keys), timeout=PATIENCE_S) == []
        assert "must not contain its masking key" in (grid.homes[0] / "errors.log").read_text()


def test_without_an_agreement_nothing_is_sent(grid: Puppets, app: App) -> None:
    with MaskingKeyAgreement(grid) as keys, pytest.raises(ConfigError, match="fraction_evaluate"):
        keys.send_and_receive(asked(keys, "evaluate"), timeout=PATIENCE_S)
    grid.push_messages(
        [Message(RecordDict({"settings": ConfigRecord({"round": 1})}), 100, "train")]
    )
    grid.close()
    *_, (_, _, reply) = grid.replies
    assert reply.error.code == 1010
    assert app.seeds == []


def test_a_message_without_a_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="holds no masking key"):
        masking_key(Message(RecordDict(), 1, "train"))


def test_the_page_says_of_each_of_flowers_strategies_what_it_does() -> None:
    page = (ROOT / "docs" / "masking_keys.md").read_text()
    names = {
        name.removesuffix("AdaptiveClipping").removesuffix("FixedClipping") for name in __all__
    }
    assert [name for name in names - {"Result", "Strategy"} if name not in page] == []
