"""Masking-key agreement against the second implementation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.masking import Agreed, Dealt
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Roster
from flhe.schemes.sealed import Slot
from tests.keys.make_masking_vectors import group, large, whole
from tests.keys.make_vectors import VECTORS as FOLDER
from tests.reference.wire import Tape

VECTORS = json.loads((FOLDER / "masking.json").read_text())
BY_NAME = {case["name"]: case for case in (*VECTORS["whole"], *VECTORS["large"])}


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert VECTORS["whole"] == [whole(group(c), c["survivors"]) for c in VECTORS["whole"]]
    told = [(group(c), c["survivors"], c["receiver"]) for c in VECTORS["large"]]
    assert VECTORS["large"] == [large(*each) for each in told]


def unhex(items: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(item) for item in items]


def numbers(items: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([int(item, 16) for item in items], np.uint64)


def tape(data: str) -> Tape:
    return Tape(bytes.fromhex(data))


def stand(case: dict[str, Any], rank: int, keys: list[str]) -> tuple[Identity, Epoch, Slot]:
    identities = [Identity(seed) for seed in unhex(case["identities"])]
    slot = Slot(*(bytes.fromhex(x) if isinstance(x, str) else x for x in case["slot"]))
    epoch = Epoch(
        id=slot.epoch,
        number=case["number"],
        run_id=slot.run_id,
        contract=bytes(32),
        roster=Roster.from_bytes(bytes.fromhex(case["roster"])),
        members=tuple(each.public for each in identities),
        rank=rank,
        group_key=bytes.fromhex(case["group_key"]),
        pair_keys=tuple(unhex(keys)),
    )
    return identities[rank], epoch, slot


@pytest.mark.parametrize("case", VECTORS["whole"], ids=lambda c: c["name"])
def test_vector(case: dict[str, Any]) -> None:
    survivors, elements = case["survivors"], case["elements"]
    shown = [int(rank) for rank in case["signatures"]], unhex(case["signatures"].values())
    for rank in range(case["size"]):
        identity, epoch, slot = stand(case, rank, case["pair_keys"][rank])
        random = tape(case["random"][rank])
        dealt = masking.deal(epoch, slot, numbers(case["seeds"][rank]), random)
        assert random.used == len(random.data)
        assert list(dealt.boxes) == unhex(case["boxes"][rank])
        assert dealt.own.hex() == case["own"][rank]
        if rank not in survivors:
            continue
        inbox = [bytes.fromhex(case["boxes"][u][rank]) for u in survivors]
        agreed, signature = masking.agree(epoch, identity, dealt, survivors, inbox, elements)
        assert signature.hex() == case["signatures"][str(rank)]
        assert bytes(agreed.share).hex() == case["shares"][str(rank)]
        for sealed, name in ((False, "answers"), (True, "sealed")):
            nonce = tape(case["nonces"][str(rank)])
            how: dict[str, Any] = {"sealed": sealed, "random": nonce}
            said = masking.release(epoch, identity, agreed, *shown, **how)
            assert said.hex() == case[name][survivors.index(rank)]
    circle = SharingParameters.of(epoch, elements)
    for reader, name in ((None, "answers"), (epoch, "sealed")):
        found = combine(circle, slot, survivors, unhex(case[name]), epoch=reader)
        assert np.array_equal(found, numbers(case["sum"]))


@pytest.mark.parametrize("case", VECTORS["large"], ids=lambda c: c["name"])
def test_vector_of_a_large_group(case: dict[str, Any]) -> None:
    survivors, rank, elements = case["survivors"], case["receiver"], case["elements"]
    _, epoch, slot = stand(case, 0, case["pair_keys"])
    dealt = masking.deal(epoch, slot, numbers(case["seed"]), tape(case["random"]))
    assert hashlib.sha256(b"".join(dealt.boxes)).hexdigest() == case["boxes_sha256"]
    identity, epoch, _ = stand(case, rank, case["receiver_keys"])
    mine = Dealt(slot, (b"",) * case["size"], bytes.fromhex(case["own"]))
    inbox = unhex(case["received"])
    agreed, signature = masking.agree(epoch, identity, mine, survivors, inbox, elements)
    assert (bytes(agreed.share).hex(), signature.hex()) == (case["share"], case["signature"])
    shares = [np.frombuffer(data, "<u8") for data in unhex(case["answer_shares"].values())]
    ranks, stacked = [int(r) for r in case["answer_shares"]], np.stack(shares).astype(np.uint64)
    found = SharingParameters.of(epoch, elements).sharing.combine(ranks, stacked, elements)
    assert np.array_equal(found, numbers(case["sum"]))


@pytest.mark.parametrize("bad", VECTORS["bad"], ids=lambda b: b["name"].replace(" ", "-"))
def test_vector_that_must_fail(bad: dict[str, Any]) -> None:
    case = BY_NAME[bad["group"]]
    rank, survivors, elements = bad.get("rank", 0), case["survivors"], case["elements"]
    identity, epoch, slot = stand(case, rank, case["pair_keys"][rank])
    mine = Dealt(slot, tuple(unhex(case["boxes"][rank])), bytes.fromhex(case["own"][rank]))
    agreed = Agreed(slot, tuple(survivors), bytes.fromhex(case["shares"][str(rank)]))
    me, how = (epoch, identity), {"sealed": False}
    steps: dict[str, Callable[[], object]] = {
        "agree": lambda: masking.agree(*me, mine, bad["survivors"], unhex(bad["boxes"]), elements),
        "release": lambda: masking.release(
            *me, agreed, bad["signers"], unhex(bad["signatures"]), **how
        ),
        "combine": lambda: combine(
            SharingParameters.of(epoch, elements), slot, bad["survivors"], unhex(bad["answers"])
        ),
    }
    with pytest.raises(errors.FlheError) as caught:
        steps[bad["at"]]()
    assert type(caught.value).__name__ == bad["error"]
