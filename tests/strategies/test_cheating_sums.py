"""A server that does not relay the sum it was sent: under each scheme its members notice, and go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.errors import AlteredError
from flhe.math.bigint import from_rows, to_rows
from flhe.math.ring import Q
from flhe.schemes.batchcrypt.adder import BatchCryptAdder
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.sash.adder import SashAdder
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective
from flhe.strategies.federation import Federation
from flhe.training.update import UPDATE
from tests.strategies.puppets import Log, Patch, same
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
]

Parts = dict[int, Sealed]
Lie = Callable[[Any, Parts, Sealed], Sealed]
"""(adder, parts by rank, their sum) -> what is relayed."""


def folded(adder: Any, parts: list[Sealed]) -> Sealed:
    total: Sealed | None = None
    for part in parts:
        total = adder.add(total, replace(part, data=part.data.copy()))
    return adder.close(total)


def in_place(parts: Parts, part: Sealed) -> list[Sealed]:
    """All parts, with another one in the place of rank 1's."""
    return [part if rank == 1 else own for rank, own in parts.items()]


def dropped(adder: Any, parts: Parts, total: Sealed) -> Sealed:
    """One contribution is left out, and its sender named all the same."""
    if total.supports:  # its coordinates are those of all
        nothing = replace(parts[1], data=np.zeros_like(parts[1].data))
        return folded(adder, in_place(parts, nothing))
    rest = folded(adder, [part for rank, part in parts.items() if rank != 1])
    return replace(rest, senders=total.senders)


def doubled(adder: Any, parts: Parts, total: Sealed) -> Sealed:
    """One contribution stands in the place of another one."""
    return folded(adder, in_place(parts, replace(parts[2], senders=(1,))))


def one_more(adder: Any, _parts: Parts, total: Sealed) -> Sealed:
    """1 is added to one coordinate (under CKKS to all of a block), which takes no key."""
    data = total.data.copy()
    if isinstance(adder, Selective):
        data[-adder.packing.nbytes(adder.rest)] ^= 1  # of what is in clear
    elif isinstance(adder, FlasheAdder):
        one = np.zeros(total.length, adder.packing.signed)
        one[0] = 1
        lanes = adder.packing.pack(one, np.zeros(one.size, adder.packing.lane))
        adder.packing.add(data, lanes, total.length)
    elif isinstance(adder, SashAdder):
        data.view("<u4")[0] += np.uint32(1 << adder.guard)
    elif isinstance(adder, BatchCryptAdder):
        numbers = from_rows(data.reshape(-1, adder.ciphertext_bytes))
        n = int(adder.public.n)  # type: ignore[union-attr]
        numbers[0] = numbers[0] * (1 + n) % n**2
        data = to_rows(numbers, adder.ciphertext_bytes, len(numbers)).reshape(-1)
    elif isinstance(adder, FedmlHeAdder):
        count = adder.sizes.count(total.length)
        first = np.zeros(count, np.uint64)
        adder.limbs.read(data, count, 0, 0, first)
        (modulus,) = adder.limbs.moduli
        first[0] = (int(first[0]) + (1 << adder.sizes.scale_bits)) % modulus
        adder.limbs.write(first, data, count, 0, 0)
    else:
        lanes = data.view("<u8")
        lanes[0] = (int(lanes[0]) + 1) % Q
    return replace(total, data=data)


LIES = {"dropped": dropped, "doubled": doubled, "one more": one_more}
CHECKS = {
    ("flashe", "one more"): "what does not match: first tag, second tag)",  # and the count does
    ("batchcrypt", "doubled"): "what does not match: ",
}
"""What is said of the check that failed."""


def cases() -> list[Any]:
    """Each lie under FLASHE, and each scheme with the lie that it stands least against by itself."""
    schemes = [name for name in SCHEMES if not re.search("round|sparse|clear", name)]
    chosen = dict.fromkeys((name, "one more") for name in schemes)
    chosen |= dict.fromkeys([*(("flashe", lie) for lie in LIES), ("flashe, sparse", "dropped")])
    rest = [(name, lie) for name in SCHEMES for lie in LIES if (name, lie) not in chosen]
    return [*chosen, *(pytest.param(*case, marks=pytest.mark.sweep) for case in rest)]


@pytest.mark.parametrize(("name", "lie"), cases())
def test_another_sum_is_refused_by_all(
    tmp_path: Path, monkeypatch: Patch, caplog: Log, name: str, lie: str
) -> None:
    """And they go on from the model before; where they opened it together, the run ends."""
    variant, parts, before = VARIANTS[name], dict[int, Sealed](), list[int]()
    grid, receive, keep = variant.nodes(tmp_path, NODES), Federation.contribution, Federation.keep

    def received(fed: Federation, *args: Any) -> Any:
        part, start = receive(fed, *args)
        if (part.slot.purpose, part.slot.round) == (UPDATE.purpose, LIE):
            parts[part.senders[0]] = replace(part, data=part.data.copy())
        return part, start

    def kept(fed: Federation, total: Sealed, *args: Any) -> Any:
        if total.slot.round == LIE:
            before.append(grid.model(0).round)
            total = LIES[lie](fed.adder, parts, fed.adder.close(total))
        return keep(fed, total, *args)

    monkeypatch.setattr(Federation, "contribution", received)
    monkeypatch.setattr(Federation, "keep", kept)
    if variant.per_sum_keys:
        with pytest.raises(AlteredError, match="sign no other one from this model"):
            variant.play(grid, 3)
    else:
        variant.play(grid, 3)
    assert before == [LIE - 1]
    replies = [reply for _, stage, reply in grid.replies if stage == "evaluate"]
    assert [r.error.code for r in replies if r.has_error()] == [1023] * NODES
    assert same(grid, range(NODES)).round == (LIE - 1 if variant.per_sum_keys else 3)
    void = f"no node could open the sum of round {LIE}: the round is void"
    assert (void in caplog.text) is not variant.per_sum_keys
    log = grid.log(0)
    assert f"the sum of round {LIE} does not match what its {NODES} senders encrypted" in log
    assert "a contribution was left out, counted twice, changed or added" in log
    assert CHECKS.get((name, lie), "") in log
