"""A member that stops others: it spoils each sum that it is in, makes sets unopenable, or breaks keys.

With SHAREs that do not open it works: docs/limits.md says so. Nobody learns anything; the other
sites' logs name the member.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flwr.app import Message

from flhe.coding.base import Plain
from flhe.errors import AlteredError, QuorumError
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope
from flhe.keys.identity import Identity
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.sum_mac import SumMac
from flhe.strategies import FlasheFedAvg
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import agree
from flhe.strategies.suspects import Suspects
from flhe.training.contract import Contract
from flhe.training.terms import Terms
from flhe.wire.canonical import dumps
from tests.strategies.puppets import Log, Puppets, play, put_identity, told
from tests.strategies.test_key_agreement import agreed
from tests.strategies.test_sash_rounds import run as run_sash

pytestmark = pytest.mark.usefixtures("quick")

# --- ciphertexts with wrong tags ---

LIAR, ROUNDS = 1, 16


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has this rank adds 1 to a tag."""
    honest = SumMac.tagged

    def tagged(self: SumMac, plain: Plain, rank: int, *rest: Any) -> Plain:
        made = honest(self, plain, rank, *rest)
        if rank == LIAR:
            made.extras[-2] += 1 if made.extras[-2] < 1 else -1
        return made

    monkeypatch.setattr(SumMac, "tagged", tagged)


@pytest.mark.usefixtures("spoilt")
def test_a_set_that_members_opened_together_has_no_second_one(tmp_path: Path) -> None:
    """To whoever colludes with the one who spoilt it, it was a sum."""
    grid = Puppets(tmp_path, 5)
    with pytest.raises(AlteredError, match=r"one of nodes \[100, 101, 102, 103, 104\] altered it"):
        run_sash(grid, ROUNDS, "clients")
    assert max(grid.stages("round").count(100 + i) for i in range(5)) == 1


@pytest.mark.usefixtures("spoilt")
def test_who_spoils_sums_is_named_and_left_out(tmp_path: Path, caplog: Log) -> None:
    """No sum ever opened, and nobody was named."""
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, 5)
    fed = play(FlasheFedAvg, grid, ROUNDS)[0]._fed
    [node] = [node for node in fed.members if fed.parameters.epoch.rank(node) == LIAR]
    assert fed.nodes_of(fed.barred) == [node]
    assert f"node {node} is left out from now on: its ciphertexts spoil sums" in caplog.text
    assert grid.model(next(i for i in range(5) if 100 + i != node)).round == ROUNDS


@pytest.mark.usefixtures("spoilt")
@pytest.mark.parametrize(("rounds", "retries"), [(8, 0), (8, 2), (1, 0), (3, 2)])
def test_a_run_whose_sums_are_all_refused_ends_with_an_error(
    rounds: int, retries: int, tmp_path: Path
) -> None:
    """It finished, with the model that it began with."""
    grid = Puppets(tmp_path, 4)
    with pytest.raises(QuorumError, match=f"{retries + 1} consecutive rounds are void"):
        play(FlasheFedAvg, grid, rounds, min_replies=4, retries=retries)
    assert len(grid.reports) == retries + 1
    assert {grid.model(i).round for i in range(4)} == {0}


# --- who is left ---


@pytest.mark.parametrize("always", [True, False], ids=["always", "now and then"])
@pytest.mark.parametrize("size", [3, 4, 10, 100])
def test_nobody_else_is_ever_named(
    size: int, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, spare = Random(size), (2 * size) // 3 - 1
    monkeypatch.setattr(secrets, "SystemRandom", lambda: random)
    suspects, found, spoilt = Suspects(), None, 0
    for _ in range(50 * size):
        senders = set(range(size)) - suspects.left_out(spare)
        assert len(senders) >= size - spare
        if LIAR in senders and (always or random.random() < 0.5):
            spoilt += 1
            found = suspects.refused(senders)
        else:
            suspects.opened(senders)
        if found is not None:
            break
    assert found == LIAR
    assert spoilt <= 3 * size.bit_length()


def test_one_accident_leaves_nobody_out_for_long() -> None:
    suspects = Suspects()
    assert suspects.refused({1, 2, 3, 4}) is None
    for _ in range(64):
        suspects.opened({1, 2, 3, 4} - suspects.left_out(2))
    assert suspects.left_out(2) == set()


def test_nobody_is_left_out_where_nobody_can_be_spared() -> None:
    suspects = Suspects()
    assert suspects.refused(set()) is None  # a sum of a run before this one
    assert suspects.left_out(9) == set()
    suspects.refused({1, 2, 3})
    assert suspects.left_out(0) == suspects.left_out(-1) == set()


# --- shares of a set that do not open, and then silence ---

SILENT = 103
"""c = 1, t = 3: with one that cannot open its share, and one that is silent, two of four are left."""


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_who_makes_a_set_unopenable_is_named_and_left_out(
    tmp_path: Path, caplog: Log, unmask: str
) -> None:
    """Three rounds were void, the run was over, and nobody was named."""
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, 4)

    def spoilt(_: int, reply: Message) -> None:
        record: Any = told(reply)
        boxes = list(record["shares"])
        first = next(i for i, box in enumerate(boxes) if box)
        boxes[first] = boxes[first][:-1] + bytes([boxes[first][-1] ^ 1])
        record["shares"] = boxes

    grid.lies([SILENT], "round", spoilt)
    for round_ in range(1, 6):
        grid.drop(round_, "unmask", "dead", (SILENT - 100,))
    strategy, _ = run_sash(grid, 5, unmask)
    fed = strategy._fed
    assert fed.nodes_of(fed.barred) == [SILENT]
    assert f"node {SILENT} is left out from now on: its shares do not decrypt" in caplog.text
    assert grid.survivors[-3:] == [3, 3, 3]


# --- key agreements ---

NODES = 5


def signed_anew(
    identity: Identity, data: bytes, change: Callable[[Envelope], bytes | None]
) -> bytes:
    """A message with what `change` makes of its payload, signed by its sender."""
    envelope = Envelope.from_bytes(data, MAX_MESSAGE)
    payload = change(envelope)
    return data if payload is None else Envelope.seal(identity, envelope.header, payload).to_bytes()


def lie(grid: Puppets, index: int, receivers: set[bytes]) -> Callable[[int, Message], None]:
    """SHAREs that these receivers cannot decrypt."""
    identity = grid.identity(index)

    def changed(envelope: Envelope) -> bytes | None:
        there = envelope.header.receiver in receivers
        return bytes(len(envelope.payload)) if there else None

    def of(_: int, reply: Message) -> None:
        said: Any = told(reply)
        said["envelopes"] = [signed_anew(identity, each, changed) for each in said["envelopes"]]

    return of


LOW_ORDER, EVERYONE = bytes(32), range(1, NODES)
EVIL: dict[str, tuple[str, Callable[[Envelope], bytes | None]]] = {
    "a key of low order": ("advertise", lambda e: dumps([LOW_ORDER, bytes(32)])),
    "a key in another spelling": ("advertise", lambda e: dumps([b"\xff" * 32, bytes(32)])),
    "no key": ("advertise", lambda e: b"no key"),
    "no proof": ("confirm", lambda e: b"no proof"),
    "another transcript": ("confirm", lambda e: dumps([bytes(32), bytes(32)])),
}


@pytest.mark.parametrize("how", EVIL)
def test_what_the_server_can_see_costs_its_sender_alone(tmp_path: Path, how: str) -> None:
    """It is signed by a member, so the others would refuse all of it, and be left out."""
    grid, (stage, change) = Puppets(tmp_path, NODES), EVIL[how]
    put_identity(grid.homes[0], bytes([1]) * 32)

    def of(_: int, reply: Message) -> None:
        said: Any = told(reply)
        said["envelope"] = signed_anew(grid.identity(0), said["envelope"], change)

    grid.lies([100], stage, of)
    assert sorted(agreed(grid).members) == [100 + i for i in EVERYONE]


def test_a_member_that_runs_two_nodes_costs_no_other_member(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    for i in (0, 1):
        put_identity(grid.homes[i], bytes(32))
    assert sorted(agreed(grid).members) == [102, 103, 104]


def test_an_unsigned_share_of_a_joint_key_costs_its_sender(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    grid.lies([100], "joint", lambda _, reply: told(reply).update(envelope=b"no share"))
    contract = Contract(Terms(Esafl(keys="joint")))
    try:
        done = agree(StreamGrid(grid), grid.get_node_ids(), contract, run_id=7, timeout=60)
    finally:
        grid.close()
    assert sorted(done.members) == [100 + i for i in EVERYONE]


def test_an_ephemeral_key_that_two_advertise_costs_one_of_them(tmp_path: Path) -> None:
    grid, kept = Puppets(tmp_path, NODES), list[bytes]()
    for i in (0, 1):
        put_identity(grid.homes[i], bytes([i + 1]) * 32)

    def of(node: int, reply: Message) -> None:
        said: Any = told(reply)
        kept.append(Envelope.from_bytes(said["envelope"], MAX_MESSAGE).payload)
        identity = grid.identity(node - 100)
        said["envelope"] = signed_anew(identity, said["envelope"], lambda _: kept[0])

    grid.lies([100, 101], "advertise", of)
    assert set(agreed(grid).members) >= {102, 103, 104}


@pytest.mark.parametrize("victims", [1, NODES - 1])
def test_a_share_that_does_not_open_costs_its_receivers(tmp_path: Path, victims: int) -> None:
    grid = Puppets(tmp_path, NODES)
    for i, home in enumerate(grid.homes):
        put_identity(home, bytes([i + 1]) * 32)
    keys = {grid.identity(i).public for i in range(1, victims + 1)}
    grid.lies([100], "share", lie(grid, 0, keys))
    if victims == 1:
        assert 101 not in agreed(grid).members
    else:
        with pytest.raises(QuorumError):
            agreed(grid)
    said = (grid.homes[1] / "errors.log").read_text()
    assert f"share message by {grid.identity(0).public.hex()[:16]}: it does not decrypt" in said
