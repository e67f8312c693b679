"""FedML-HE's Figure 12: a key that two parties share, beside a key that both hold.

Ours are `ckks` under one key and `threshold-rlwe`, two of two; beside them TenSEAL under one key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flhe.schemes.sealed import Sealed
from flhe_lab.bench import peers
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.federation import Federation
from flhe_lab.bench.schemes import fedml, fedml_terms
from flhe_lab.papers.published import MB
from flhe_lab.tables.phase_costs import Rows, timed
from flhe_lab.tables.result import Group, Marked
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section
from flhe_lab.variants.threshold import keys as threshold_keys
from flhe_lab.variants.threshold.adder import ThresholdRlwe
from flhe_lab.variants.threshold.opening import Party, combine
from flhe_lab.variants.threshold.sealer import ThresholdSealer

PARTIES = 2
CRS = bytes(range(32))
"""Public; a hash of a nonce of each, where parties are real."""

SINGLE, THRESHOLD, TENSEAL = "one key (ckks)", "two of two (threshold-rlwe)", "one key (TenSEAL)"


def agreed() -> tuple[ThresholdRlwe, list[threshold_keys.ThresholdKey]]:
    """Keys of two parties, made as they would."""
    scheme = ThresholdRlwe(cohort=PARTIES, threshold=PARTIES)
    drawn = [threshold_keys.begin(scheme, rank, CRS) for rank in range(PARTIES)]
    commitments = [commitment for _, commitment in drawn]
    shown = [threshold_keys.reveal(scheme, state, commitments) for state, _ in drawn]
    keys = [
        threshold_keys.finish(scheme, state, commitments, [boxes[rank] for boxes in shown])
        for rank, (state, _) in enumerate(drawn)
    ]
    return replace(scheme, key_id=keys[0].public.key_id), keys


def measure(values: int, repeats: int, say: Say) -> Rows:
    """Time all three in turns; JSON values."""
    setting = Setting(values, PARTIES)
    updates = setting.updates()
    scheme, keys = agreed()
    public, parties = keys[0].public, [Party(scheme, key) for key in keys]
    theirs: list[bytes] = []

    def opened(total: Sealed) -> Any:
        if not theirs:  # in the turn that warms up
            theirs.append(parties[1].partial(total, (0, 1)))
        return combine(scheme, total, (0, 1), {0: parties[0].partial(total, (0, 1)), 1: theirs[0]})

    both = Federation(
        fedml_terms(1.0), scheme, lambda rank: ThresholdSealer(scheme, public, rank), opened
    )
    contenders = {
        SINGLE: fedml(setting, updates),
        THRESHOLD: both.contender(THRESHOLD, setting, updates),
        TENSEAL: peers.shortest_ckks(setting, updates),
    }
    found = timed(contenders, repeats, say)
    found[THRESHOLD]["answer"] = [len(theirs[0]), "counted"]
    return found


def _values(plan: Plan) -> int:
    return 1 << (15 if plan.quick else 19)


def _step(plan: Plan) -> Step:
    values = _values(plan)
    return Step(
        f"fedml-threshold-{values}",
        lambda say: measure(values, plan.repeats, say),
        f"threshold and single keys, {values:,} values",
    )


TOLD = {"encrypt": "encryption", "add": "addition", "decrypt": "decryption"}
SIZES = {"bytes": "upload", "answer": "answer"}
"""Phases and sizes as they are measured -> as tables call them."""


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    for who, row in found[_step(plan).key].items():
        group: Group = "peer" if who == TENSEAL else "ours"
        numbers = {what: Marked(*row[phase]) for phase, what in TOLD.items()}
        numbers |= {what: Marked(*row[size]) / MB for size, what in SIZES.items() if size in row}
        yield Line("two parties", who, group, numbers)


FIGURE_12 = section(
    lambda plan: [_step(plan)],
    Table("fedml-figure-12", _lines, lambda plan, _found: {"values": _values(plan)}),
)
