"""A server that does not relay the sum it was sent: under each scheme its members notice, and go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from flhe.errors import AlteredError
from flhe.math.bigint import from_rows, to_rows
from flhe.math.ring import Q
from flhe.mods import records
from flhe.schemes.batchcrypt.adder import BatchCryptAdder
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.sash.adder import SashAdder
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective
from flhe.strategies.federation import Federation
from flhe.training.kind import EVALUATION
from flhe.training.model import Model
from tests.strategies.puppets import Log, Patch, Puppets, restaged, same
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
Lie = Callable[[Any, Parts, Sealed, Parts], Sealed]
"""(adder, parts by rank, their sum, the parts of the round before) -> what is relayed."""


def folded(adder: Any, parts: list[Sealed]) -> Sealed:
    total: Sealed | None = None
    for part in parts:
        total = adder.add(total, replace(part, data=part.data.copy()))
    return adder.close(total)


def in_place(parts: Parts, part: Sealed) -> list[Sealed]:
    """All parts, with another one in the place of rank 1's."""
    return [part if rank == 1 else own for rank, own in parts.items()]


def dropped(adder: Any, parts: Parts, total: Sealed, _old: Parts) -> Sealed:
    """One contribution is left out, and its sender named all the same."""
    if total.supports:  # its coordinates are those of all
        nothing = replace(parts[1], data=np.zeros_like(parts[1].data))
        return folded(adder, in_place(parts, nothing))
    rest = folded(adder, [part for rank, part in parts.items() if rank != 1])
    return replace(rest, senders=total.senders)


def doubled(adder: Any, parts: Parts, total: Sealed, _old: Parts) -> Sealed:
    """One contribution stands in the place of another one."""
    return folded(adder, in_place(parts, replace(parts[2], senders=(1,))))


def one_more(adder: Any, _parts: Parts, total: Sealed, _old: Parts) -> Sealed:
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


def replayed(adder: Any, parts: Parts, _total: Sealed, old: Parts) -> Sealed:
    """What one sent in the round before, under the same key, stands in the place of its own."""
    return folded(adder, in_place(parts, replace(old[1], slot=parts[1].slot)))


def added(adder: Any, total: Sealed, more: Any) -> Sealed:
    data = total.data.copy()
    adder.packing.add(data, more, total.length)
    return replace(total, data=data)


def injected(adder: Any, _parts: Parts, total: Sealed, _old: Parts) -> Sealed:
    """A contribution of the server's own, on top of those of all senders."""
    packing = adder.packing
    own = np.arange(total.length).astype(packing.signed) % 100
    return added(adder, total, packing.pack(own, np.zeros(own.size, packing.lane)))


def counted_again(adder: Any, parts: Parts, total: Sealed, _old: Parts) -> Sealed:
    """One of the contributions, on top of all of them."""
    return added(adder, total, parts[2].data)


LIES = {"dropped": dropped, "doubled": doubled, "one more": one_more}
OF_FLASHE = {"replayed": replayed, "injected": injected, "counted again": counted_again}
CHECKS = {
    ("flashe", "one more"): "what does not match: first tag, second tag)",  # and the count does
    ("batchcrypt", "doubled"): "what does not match: ",
}
"""What is said of the check that failed."""


class Cheat:
    """A server that keeps the parts of a round, and relays something else than their sum."""

    def __init__(self, path: Path, name: str, monkeypatch: Patch, lie: Lie) -> None:
        self.variant, self.grid = VARIANTS[name], VARIANTS[name].nodes(path, NODES)
        self.before: list[Model] = []
        self.parts = parts = dict[int, Parts]()
        receive, keep = Federation.contribution, Federation.keep

        def received(fed: Federation, *args: Any) -> Any:
            part, start = receive(fed, *args)
            copy = replace(part, data=part.data.copy())
            if part.slot.purpose != EVALUATION.purpose:
                parts.setdefault(part.slot.round, {})[part.senders[0]] = copy
            return part, start

        def kept(fed: Federation, total: Sealed, *args: Any) -> Any:
            if total.slot.round == LIE:
                self.before.append(self.grid.model(0))
                total = lie(fed.adder, parts[LIE], fed.adder.close(total), parts[LIE - 1])
            return keep(fed, total, *args)

        monkeypatch.setattr(Federation, "contribution", received)
        monkeypatch.setattr(Federation, "keep", kept)

    def is_refused(self, rounds: int) -> str:
        """All refuse the sum, and go on from the model before; what one of them noted.

        Where they opened it together, they sign no other one from that model, and the run ends.
        """
        if self.variant.per_sum_keys:
            with pytest.raises(AlteredError, match="sign no other one from this model"):
                self.variant.play(self.grid, rounds)
            rounds = LIE - 1
        else:
            self.variant.play(self.grid, rounds)
        before = self.before[0]
        assert before.round == LIE - 1
        assert refusals(self.grid) == [1023] * NODES
        assert same(self.grid, range(NODES)).round == rounds
        return self.grid.log(0)


def refusals(grid: Puppets) -> list[int]:
    return [r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()]


def cases() -> list[Any]:
    """Each lie under FLASHE, and each scheme with the lie that it stands least against by itself."""
    quick = [("flashe", lie) for lie in {**LIES, **OF_FLASHE}] + [
        (name, "one more") for name in SCHEMES
    ]
    quick += [("batchcrypt", "doubled"), ("flashe, sparse", "dropped")]
    chosen = dict.fromkeys(quick)
    rest = [(name, lie) for name in SCHEMES for lie in LIES if (name, lie) not in chosen]
    return [*chosen, *(pytest.param(*case, marks=pytest.mark.sweep) for case in rest)]


@pytest.mark.parametrize(("name", "lie"), cases())
def test_another_sum_is_refused_by_all(
    tmp_path: Path, monkeypatch: Patch, caplog: Log, name: str, lie: str
) -> None:
    cheat = Cheat(tmp_path, name, monkeypatch, (LIES | OF_FLASHE)[lie])
    log = cheat.is_refused(3)
    void = f"the sum of round {LIE} opened for nobody: the round is void"
    assert (void in caplog.text) is not cheat.variant.per_sum_keys
    assert f"the sum of round {LIE} is not that of what its {NODES} senders encrypted" in log
    assert "a contribution was left out, counted twice, changed or brought in" in log
    assert CHECKS.get((name, lie), "") in log


def test_two_sums_of_one_round_are_one_too_many(tmp_path: Path) -> None:
    """A server that sends each node the sum of the others, after that of all."""
    grid, asked = VARIANTS["flashe"].nodes(tmp_path, NODES), list[int]()

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        record = records.find_config(content, records.STAGE)
        if stage != "evaluate" or record is None or record["round"] != LIE or node in asked:
            return content
        asked.append(node)
        total = records.to_sealed(record["sums"][0], content[f"{records.SUM}.0"])
        fewer = replace(total, senders=total.senders[:3], data=total.data.copy())
        out = restaged(content, sums=[fewer.header()])
        out[f"{records.SUM}.0"] = records.from_sealed(fewer)
        return out

    grid.rewrite = rewrite
    VARIANTS["flashe"].play(grid, 3)
    assert len(asked) == NODES
    assert refusals(grid) == [1023] * NODES
    assert same(grid, range(NODES)).round == 3
