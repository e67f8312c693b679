"""A server that does not relay the sum it was sent: under each scheme its members notice, and go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.math.bigint import from_rows, to_rows
from flhe.math.ring import Q
from flhe.mods import records
from flhe.schemes.batchcrypt.scheme import Paillier
from flhe.schemes.fedml_he.ring import Ckks
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective
from flhe.strategies.federation import Federation
from flhe.training.model import Model
from tests.strategies.puppets import Puppets, same
from tests.strategies.variants import VARIANTS

pytestmark = pytest.mark.usefixtures("quick")

NODES = 4
LIE = 2
"""The round whose sum is another one."""

SCHEMES = [
    "flashe",
    "flashe, sparse",
    "sash, clients read",
    "batchcrypt",
    "esafl",
    "esafl, keys of a round",
    "fedml-he",
    "flashe, half in clear",
    "batchcrypt, half in clear",
]

Lie = Callable[[Any, dict[int, Sealed], Sealed], Sealed]
"""(scheme, parts by rank, their sum) -> what is relayed."""


def folded(scheme: Any, parts: list[Sealed]) -> Sealed:
    total: Sealed | None = None
    for part in parts:
        total = scheme.add(total, replace(part, data=part.data.copy()))
    assert total is not None
    return scheme.close(total)  # type: ignore[no-any-return]


def dropped(scheme: Any, parts: dict[int, Sealed], total: Sealed) -> Sealed:
    """One contribution is left out, and its sender named all the same."""
    if total.supports:  # its coordinates are those of all
        nothing = replace(parts[1], data=np.zeros_like(parts[1].data))
        return folded(scheme, [nothing if rank == 1 else part for rank, part in parts.items()])
    rest = folded(scheme, [part for rank, part in parts.items() if rank != 1])
    return replace(rest, senders=total.senders)


def doubled(scheme: Any, parts: dict[int, Sealed], total: Sealed) -> Sealed:
    """One contribution stands in the place of another one."""
    again = replace(parts[2], senders=(1,))
    return folded(scheme, [again if rank == 1 else part for rank, part in parts.items()])


def one_more(scheme: Any, _parts: dict[int, Sealed], total: Sealed) -> Sealed:
    """1 is added to one coordinate (under CKKS to all of a block), which takes no key."""
    data = total.data.copy()
    if isinstance(scheme, Selective):
        data[-scheme.packing.nbytes(scheme.rest)] ^= 1  # of what is in clear
    elif isinstance(scheme, Flashe):
        one = np.zeros(total.length, scheme.packing.signed)
        one[0] = 1
        lanes = scheme.packing.pack(one, np.zeros(one.size, scheme.packing.lane))
        scheme.packing.add(data, lanes, total.length)
    elif isinstance(scheme, Sash):
        data.view("<u4")[0] += np.uint32(1 << scheme.guard)
    elif isinstance(scheme, Paillier):
        numbers = from_rows(data.reshape(-1, scheme.ciphertext_bytes))
        n = int(scheme.public.n)  # type: ignore[union-attr]
        numbers[0] = numbers[0] * (1 + n) % n**2
        data = to_rows(numbers, scheme.ciphertext_bytes, len(numbers)).reshape(-1)
    elif isinstance(scheme, Ckks):
        count = scheme.sizes.count(total.length)
        first = np.zeros(count, np.uint64)
        scheme.limbs.read(data, count, 0, 0, first)
        (modulus,) = scheme.limbs.moduli
        first[0] = (int(first[0]) + (1 << scheme.sizes.scale_bits)) % modulus
        scheme.limbs.write(first, data, count, 0, 0)
    else:
        lanes = data.view("<u8")
        lanes[0] = (int(lanes[0]) + 1) % Q
    return replace(total, data=data)


LIES = {"dropped": dropped, "doubled": doubled, "one more": one_more}


class Cheat:
    """Keeps the parts of a round, and relays something else than their sum."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lie: Lie, round_: int = LIE) -> None:
        self.told = 0
        parts: dict[int, Sealed] = {}
        receive, keep = Federation.receive, Federation.keep

        def received(fed: Federation, *args: Any) -> Any:
            part, start = receive(fed, *args)
            if part.slot.round == round_:
                parts[part.senders[0]] = replace(part, data=part.data.copy())
            return part, start

        def kept(fed: Federation, total: Sealed, *args: Any) -> Any:
            if total.slot.round != round_:
                return keep(fed, total, *args)
            self.told += 1
            scheme = fed.scheme
            return keep(fed, lie(scheme, parts, scheme.close(total)), *args)

        monkeypatch.setattr(Federation, "receive", received)
        monkeypatch.setattr(Federation, "keep", kept)


def run(grid: Puppets, name: str, rounds: int = 4) -> None:
    VARIANTS[name].play(grid, rounds)


def nodes(path: Path, name: str) -> Puppets:
    return VARIANTS[name].nodes(path, NODES)


def refusals(grid: Puppets) -> list[int]:
    """Codes with which nodes refused to evaluate."""
    return [r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()]


def cases() -> list[Any]:
    """Each lie under FLASHE, and each scheme with the lie that it stands least against by itself."""
    quick = [("flashe", lie) for lie in LIES] + [(name, "one more") for name in SCHEMES]
    quick += [("batchcrypt", "doubled"), ("flashe, sparse", "dropped")]
    chosen = dict.fromkeys(quick)
    rest = [(name, lie) for name in SCHEMES for lie in LIES if (name, lie) not in chosen]
    return [*chosen, *(pytest.param(*case, marks=pytest.mark.sweep) for case in rest)]


@pytest.mark.parametrize(("name", "lie"), cases())
def test_another_sum_is_refused_by_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    lie: str,
) -> None:
    grid = nodes(tmp_path, name)
    before: list[Model] = []
    cheat = Cheat(monkeypatch, LIES[lie])
    keep = Federation.keep

    def kept(fed: Federation, total: Sealed, *args: Any) -> Any:
        if total.slot.round == LIE:
            before.append(grid.model(0))
        return keep(fed, total, *args)

    monkeypatch.setattr(Federation, "keep", kept)
    run(grid, name)
    assert cheat.told == 1
    assert refusals(grid) == [1023] * NODES
    assert before[0].round == LIE - 1
    assert f"the sum of round {LIE} opened for nobody: the round is void" in caplog.text
    after = same(grid, range(NODES))
    assert after.round == 4
    log = grid.log(0)
    assert f"the sum of round {LIE} is not that of what its {NODES} senders encrypted" in log
    assert "a contribution was left out, counted twice, changed or brought in" in log


def test_the_log_says_which_check_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = nodes(tmp_path, "flashe")
    Cheat(monkeypatch, one_more)
    run(grid, "flashe", 3)
    log = grid.log(0)
    assert "what does not match: first tag, second tag)" in log  # and the count does
    other = nodes(tmp_path / "other", "batchcrypt")
    Cheat(monkeypatch, doubled)
    run(other, "batchcrypt", 3)
    assert "batchcrypt: " in other.log(0)


def test_two_sums_of_one_round_are_one_too_many(tmp_path: Path) -> None:
    """A server that sends each node the sum of the others, after that of all."""
    grid, asked = nodes(tmp_path, "flashe"), list[int]()

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        record = records.find_config(content, records.STAGE)
        if stage != "evaluate" or record is None or record["round"] != LIE or node in asked:
            return content
        asked.append(node)
        header, arrays = record["sums"][0], content[f"{records.SUM}.0"]  # type: ignore[index]
        total = records.to_sealed(header, arrays)  # type: ignore[arg-type]
        fewer = replace(total, senders=total.senders[:3], data=total.data.copy())
        changed = ConfigRecord({**record, "sums": [fewer.header()]})
        return RecordDict(
            {
                **content,
                records.STAGE: changed,
                f"{records.SUM}.0": records.from_sealed(fewer),
            }
        )

    grid.rewrite = rewrite
    run(grid, "flashe", 3)
    assert len(asked) == NODES
    assert refusals(grid) == [1014] * NODES  # with receipts of others than its senders
    assert same(grid, range(NODES)).round == 3


# --- what no sender of it encrypted, added to a sum ---

Parts = dict[int, Sealed]


def added(scheme: Any, total: Sealed, more: Any) -> Sealed:
    data = total.data.copy()
    scheme.packing.add(data, more, total.length)
    return replace(total, data=data)


def injected(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
    """A contribution of the server's own, on top of those of all senders."""
    packing = scheme.packing
    own = np.arange(total.length).astype(packing.signed) % 100
    return added(scheme, total, packing.pack(own, np.zeros(own.size, packing.lane)))


def counted_again(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
    """One of the contributions, on top of all of them."""
    return added(scheme, total, parts[2].data)


@pytest.mark.parametrize("lie", [injected, counted_again])
def test_what_is_brought_in_is_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    grid = nodes(tmp_path, "flashe")
    cheat = Cheat(monkeypatch, lie)
    run(grid, "flashe", 3)
    assert cheat.told == 1
    assert refusals(grid) == [1023] * NODES
    assert "brought in on the way; the round is refused" in grid.log(0)
    assert same(grid, range(NODES)).round == 3


def test_an_update_of_the_round_before_is_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of one of this round: under the same key, and genuine once."""
    grid, before = nodes(tmp_path, "flashe"), dict[int, Sealed]()

    def noted(_scheme: Any, parts: Parts, total: Sealed) -> Sealed:
        before.update(parts)
        return total

    def replayed(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
        assert sorted(before) == sorted(parts)
        old = replace(before[1], slot=parts[1].slot)
        return folded(scheme, [old if rank == 1 else part for rank, part in parts.items()])

    Cheat(monkeypatch, noted, round_=1)
    cheat = Cheat(monkeypatch, replayed, round_=2)
    run(grid, "flashe", 3)
    assert cheat.told == 1
    assert refusals(grid) == [1023] * NODES
    assert same(grid, range(NODES)).round == 3
