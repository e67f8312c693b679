"""What the server notes of each node, out of what it answers."""

from __future__ import annotations

import pytest
from flwr.app import Error, Message, RecordDict

from flhe.strategies import FlasheFedAvg
from flhe.strategies.federation import LOST, Federation
from tests.mods.harness import SLUGS
from tests.strategies.puppets import Puppets, play

ONE = 101

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A federation after three rounds."""
    grid = Puppets(tmp_path_factory.mktemp("federation"), 3)
    grid.away = lambda round_: set()
    strategy, _ = play(FlasheFedAvg, grid, 3)
    assert strategy._fed is not None
    return strategy._fed


NOTED = {
    1011: "lost", 1012: "lost", 1013: "keyless", 1014: "lost", 1019: "lost", 1020: "keyless",
    1021: "left", 1023: "lost", 1024: "lost",
}  # fmt: skip
"""Refusals, and what the server takes the node for; all others leave it where it was."""


@pytest.mark.parametrize("code", SLUGS)
def test_a_refusal_says_where_a_node_stands(fed: Federation, code: int) -> None:
    fed.at[ONE] = 0  # so the last sums are those that it was sent
    fed.confirmed.discard(ONE)
    for known in (fed.membership.keyless, fed.membership.left, fed.refusers, fed.attempt.spent):
        known.discard(ONE)
    fed.round.claimed.clear()
    reply = Message(RecordDict(), ONE, "train")
    reply._content, reply._error = None, Error(code=code, reason="")
    sent = fed.ledger.base in (fed.missing_rounds(ONE) or ())
    fed.refused(ONE, reply)
    found = {
        "lost": fed.at[ONE] == LOST,
        "keyless": ONE in fed.membership.keyless,
        "left": ONE in fed.membership.left,
    }
    assert [name for name, noted in found.items() if noted] == [
        name for name in found if name == NOTED.get(code)
    ]
    assert (ONE in fed.refusers) == (sent and code in (1011, 1012, 1014, 1023, 1024))
    assert (ONE in fed.attempt.spent) == (not sent and code == 1012)


def test_one_member_tells_the_means_of_each_round(fed: Federation) -> None:
    assert sorted(fed.means) == [1, 2, 3]
