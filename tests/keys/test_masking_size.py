"""What the masking-key agreement moves for one client: made, packed as it travels, and counted."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.keys.agreement import masking
from flhe.math.prg import random_elements
from flhe.mods import records
from flhe_lab.bench.sash_members import SashMembers, Setting


@pytest.mark.parametrize(("members", "most"), [(64, 2_300_000), (100, 150_000), (1000, 500_000)])
def test_bytes_of_one_client_in_a_round(members: int, most: int) -> None:
    """All shares up and down, the set, signatures, the answer; whatever the length of the update."""
    made = SashMembers(Setting(members, 10))
    epoch, slot, circle = made._epoch, made._slot, made.circle
    dealt = masking.deal(epoch, slot, random_elements(circle.elements))
    survivors, need = list(range(members)), circle.thresholds.threshold
    agreed, signature = masking.agree(
        epoch, made._identities[0], dealt, survivors, made._boxes, circle.elements
    )
    signers, signatures = survivors[:need], made._signatures[:need]
    answer = masking.release(
        epoch, made._identities[0], agreed, signers, signatures, circle.elements, sealed=True
    )
    moved = sum(
        records.message_bytes(RecordDict({"flhe": ConfigRecord(fields)}))
        for fields in (
            {"shares": list(dealt.boxes)},
            {"survivors": survivors, "shares": made._boxes},
            {"signature": signature},
            {"signers": signers, "signatures": signatures},
            {"answer": answer},
        )
    )
    assert moved <= most
    assert moved > most / 4  # all of it is counted
    assert int(np.max([len(box) for box in dealt.boxes])) == circle.box_bytes
