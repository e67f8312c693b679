"""SASH and members who do not play along: nothing wrong comes out, and who it was is said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from flhe.errors import QuorumError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import answer_of
from flhe.keys.agreement.circle import UNMASK, Circle, about
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import records, survivors
from flhe.node.store import Store
from flhe.schemes.sash.scheme import SashSealer
from flhe.wire.canonical import loads
from tests.rosters import write_signed
from tests.strategies.puppets import Puppets, told
from tests.strategies.reference import Reference, assert_like
from tests.strategies.test_sash_rounds import numpy_of, run

pytestmark = pytest.mark.usefixtures("quick")

NODES, LIAR = 6, 2
"""c = 1, t = 4: two may be missing."""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    for name in ("flwr", "flhe"):
        logging.getLogger(name).propagate = True
    caplog.set_level(logging.INFO)
    return caplog


def reference(rounds: int, without: frozenset[int] = frozenset()) -> Reference:
    return Reference.of([set(range(NODES)) - without] * rounds)


def lying(grid: Puppets, stage: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """What node LIAR answers to a stage is changed on its way out."""

    def forge(node: int, name: str, reply: Message) -> Message:
        if (node, name) == (100 + LIAR, stage) and not reply.has_error():
            reply.content[records.REPLY] = ConfigRecord(change(dict(told(reply))))
        return reply

    grid.forge = forge


def other_share(grid: Puppets, answer: bytes) -> bytes:
    """An answer to UNMASK with another share in it, signed by its own member."""
    kept = masking.Agreed.from_bytes((grid.run_dir(LIAR) / "survivors").read_bytes())
    rank, payload, _ = loads(answer, 1 << 20, "answer")
    elements = np.frombuffer(payload, "<u8").copy()
    elements[5] ^= np.uint64(1)
    node = Store(grid.homes[LIAR])
    epoch_bytes = node.get_epoch(node.epochs()[0])
    circle = Circle.of(Epoch.from_bytes(epoch_bytes), 2048)
    header = circle.header(kept.slot, UNMASK, rank, about(kept.survivors))
    return answer_of(rank, Envelope.seal(node.identity(), header, elements.tobytes()))


def test_a_wrong_answer_is_named_and_left_out(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    grid = Puppets(tmp_path, NODES)
    lying(grid, "unmask", lambda a: {**a, "answer": other_share(grid, a["answer"])})
    _, result = run(grid, 2)
    assert_like(numpy_of(result), reference(2), 1e-5)
    assert (
        f"shares of ranks {grid.ranked().index(LIAR)} do not fit the others: left out" in log.text
    )


def test_shares_that_do_not_open_are_theirs_who_sent_them(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """One round is lost; then the liar is asked for no more updates, and nobody else is blamed."""
    grid = Puppets(tmp_path, NODES)
    lying(
        grid, "round", lambda a: {**a, "shares": [b[:-1] + b"\0" if b else b for b in a["shares"]]}
    )
    strategy, result = run(grid, 3)
    assert_like(numpy_of(result), reference(2, frozenset({LIAR})), 1e-5)
    fed = strategy._fed
    assert fed is not None
    assert fed.barred == {100 + LIAR}
    assert sorted(fed.ledger.chain) == [0, 2, 3]
    assert f"node {100 + LIAR} is left out from now on: its shares do not open" in log.text
    assert not any(fed.model_round(100 + i) < 0 for i in range(NODES) if i != LIAR)


def test_a_signature_that_does_not_verify_is_not_passed_on(tmp_path: Path) -> None:
    """Members would give no share for a set with it, and the round would be void."""
    grid = Puppets(tmp_path, NODES)
    lying(grid, "consist", lambda a: {**a, "signature": bytes(64)})
    _, result = run(grid, 2)
    assert grid.survivors == [NODES] * 2
    assert_like(numpy_of(result), reference(2), 1e-5)


def test_a_few_who_complain_bar_nobody(tmp_path: Path) -> None:
    """As many as may collude could say of anybody that its shares do not open."""
    grid = Puppets(tmp_path, NODES)

    def complaint(answer: dict[str, Any]) -> dict[str, Any]:
        return {"v": 2, "step": "consist", "bad": list(range(NODES))}

    lying(grid, "consist", complaint)
    strategy, result = run(grid, 2)
    assert strategy._fed is not None
    assert strategy._fed.barred == set()
    assert_like(numpy_of(result), reference(2), 1e-5)


def spoil(monkeypatch: pytest.MonkeyPatch, how: str) -> list[int]:
    """Rank 0 sends what its seed does not mask, or shares of another seed; how often it did."""
    deal, honest, spoilt = survivors.masking.deal, SashSealer._mask, list[int]()

    def other_seed(epoch: Any, slot: Any, seed: Any) -> Any:
        spoilt.extend([slot.round] * (epoch.rank == 0))
        return deal(epoch, slot, np.roll(seed, 1) if epoch.rank == 0 else seed)

    def other_mask(self: SashSealer, slot: Any, length: int) -> Any:
        seed, lanes = honest(self, slot, length)
        if self.rank == 0:
            lanes[::7] += np.uint32(1 << 30)
            spoilt.append(slot.round)
        return seed, lanes

    if how == "polynomial":
        monkeypatch.setattr(survivors.masking, "deal", other_seed)
    else:
        monkeypatch.setattr(SashSealer, "_mask", other_mask)
    return spoilt


@pytest.mark.parametrize("how", ["ciphertext", "polynomial"])
def test_what_cannot_be_named_voids_the_round_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each round had its one set, and nobody was blamed for what nobody can tell."""
    grid, spoilt = Puppets(tmp_path, NODES), spoil(monkeypatch, how)
    with pytest.raises(QuorumError, match="3 rounds in a row are void"):
        run(grid, 5)
    assert len(spoilt) >= 3
    assert grid.stages("unmask").count(101) == 3


def test_clients_that_cannot_open_end_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, spoilt = Puppets(tmp_path, NODES), spoil(monkeypatch, "ciphertext")
    with pytest.raises(QuorumError):
        run(grid, 12, "clients")
    assert spoilt
    assert grid.stages("consist").count(101) < 12


def pinned(grid: Puppets, **bounds: Any) -> None:
    """Pin one roster on all nodes."""
    identities = [Identity.from_seed(bytes([i + 1]) * 32) for i in range(len(grid.homes))]
    roster = Roster(
        tuple(Member(f"site-{i}", each.public) for i, each in enumerate(identities)),
        **{"collusion": 1, "min_survivors": 2, "schemes": ("*",), **bounds},
    )
    pinned = write_signed(grid.homes[0].parent / "roster", roster, identities)
    for i, (home, context) in enumerate(zip(grid.homes, grid.contexts.values(), strict=True)):
        Store(home).identity(lambda _, i=i: bytes([i + 1]) * 32)  # type: ignore[misc]
        context.node_config = {**context.node_config, **pinned}


def test_the_rosters_own_bound_on_survivors_is_heeded(tmp_path: Path) -> None:
    """Five survivors, where four would do: with two away the round is asked for again, not spoiled."""
    grid = Puppets(tmp_path, NODES)
    grid.drop(2, "round", "dead", (0, 1))
    pinned(grid, min_survivors=5)
    with pytest.raises(QuorumError, match="4 updates, 5 needed"):
        run(grid, 3)
    assert grid.stages("consist").count(102) == 1  # of round 1


def test_a_rosters_own_bound_on_collusion_sets_the_threshold(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    grid.drop(1, "consist", "dead", (0,))
    grid.drop(2, "unmask", "lost", (4,))
    pinned(grid, collusion=3)  # t = (6 + 3) // 2 + 1 = 5
    strategy, result = run(grid, 2)
    assert strategy._fed is not None
    assert strategy._fed.circle.thresholds.threshold == 5
    assert_like(numpy_of(result), reference(2), 1e-5)


def test_a_deployed_node_lets_the_server_read_only_if_it_says_so(tmp_path: Path) -> None:
    for unmask in ("server", "clients"):
        grid = Puppets(tmp_path / unmask, NODES)
        pinned(grid)
        for context in grid.contexts.values():
            del context.node_config["flhe-server-reads"]
        if unmask == "clients":  # the server is shown no sum, so there is nothing to allow
            run(grid, 1, unmask)
            continue
        with pytest.raises(QuorumError, match="its policy refuses"):
            run(grid, 1)
        assert grid.stages("round") == []


def test_a_model_that_is_not_the_one_it_is_said_to_be(tmp_path: Path) -> None:
    """Where the server reads, it names the model's hash; a node that got another one does not train."""
    grid = Puppets(tmp_path, NODES)

    def rewrite(node: int, stage: str, content: Any) -> Any:
        if (node, stage) == (100 + LIAR, "round"):
            arrays = records.to_numpy(content["arrays"])
            arrays["w"] = arrays["w"] + np.float32(1)
            content = type(content)({**content, "arrays": records.from_numpy(arrays)})
        return content

    grid.rewrite = rewrite
    _, result = run(grid, 2)
    assert_like(numpy_of(result), reference(2, frozenset({LIAR})), 1e-5)
    said = [r for n, s, r in grid.replies if (n, s) == (100 + LIAR, "round")]
    assert {reply.error.code for reply in said} == {1019}
    assert grid.trainings(LIAR) == 0
