"""FedML-HE's Figure 12: a key that two parties share, beside a key that both hold.

Ours are `ckks` under one key and `threshold-rlwe`, two of two; beside them TenSEAL under one key. Keys
are timed once a turn: of one party, without what it waits for. Opening under a shared key is one
party's answer and putting both answers together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flhe.errors import FlheError
from flhe.keys import threshold_keys
from flhe.schemes.ckks_keys import CkksSecret
from flhe.schemes.presets import DEFAULT_CKKS
from flhe.schemes.seal_blocks import tenseal
from flhe.schemes.threshold import ThresholdRlwe
from flhe.schemes.threshold_answers import Answered
from flhe.schemes.threshold_opening import Party, combine
from flhe.schemes.threshold_sealer import ThresholdSealer
from flhe.sealed import Sealed
from flhe.sim.bench import PHASES, TOLERANCE, take_turns
from flhe.sim.bench.schemes import Coded, fedml, fedml_terms
from flhe.sim.contenders import SLOT, Contender, Kind, Setting, Timed, Vector, worst
from flhe.sim.fedml_models import MB
from flhe.sim.peers import SLOTS, shortest_ckks, shortest_moduli
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.marked import counted, measured
from flhe.sim.tables.result import Entry, Group, Result
from flhe.sim.tables.section import Found, Plan, Say, Section, Step

PARTIES = 2
CRS = bytes(range(32))
"""Public; a hash of a nonce of each, where parties are real."""

SINGLE, THRESHOLD, TENSEAL = "one key (ckks)", "two of two (threshold-rlwe)", "one key (TenSEAL)"


def agreed() -> tuple[ThresholdRlwe, list[threshold_keys.ThresholdKey], float]:
    """Keys of two parties, made as they would, and the seconds of one."""
    scheme = ThresholdRlwe(cohort=PARTIES, threshold=PARTIES)
    began = time.perf_counter()
    drawn = [threshold_keys.begin(scheme, rank, CRS) for rank in range(PARTIES)]
    commitments = [commitment for _, commitment in drawn]
    shown = [threshold_keys.reveal(scheme, state, commitments) for state, _ in drawn]
    publics = [public for _, public, _ in shown]
    keys = [
        threshold_keys.finish(scheme, state, publics, [shares[rank] for _, _, shares in shown])
        for rank, (state, _, _) in enumerate(shown)
    ]
    seconds = (time.perf_counter() - began) / PARTIES
    return dataclasses.replace(scheme, key_id=keys[0].public.key_id), keys, seconds


class ThresholdContender:
    """Two parties' sum under a shared key, from float32 update to float32 mean.

    Parameters
    ----------
    setting, updates
        As for every contender, of two clients.
    """

    name = THRESHOLD
    kind: Kind = "scheme"
    max_repeats = 1_000_000
    note = None

    def __init__(self, setting: Setting, updates: Sequence[Vector]) -> None:
        self.scheme, keys, _ = agreed()
        self._coded, self._updates = Coded(fedml_terms(1.0).codec(), updates), updates
        self._public = keys[0].public
        total: Sealed | None = None
        for rank in range(PARTIES):
            part = self._encrypt(rank)
            total = self.scheme.add(total, part)
        assert total is not None
        self._total = total
        self._parties = [Party(self.scheme, key) for key in keys]
        self._theirs = self._answer(1)
        self.upload_bytes: int | None = part.data.size + len(part.header())
        self.answer_bytes = self._theirs.data.size + len(self._theirs.header())
        self.mean: Vector = np.empty(0, np.float32)
        more = dataclasses.replace(part, senders=(1,))
        running = self.scheme.add(None, dataclasses.replace(part, senders=(0,)))
        self.encrypt: Timed = lambda: self._encrypt(0)
        self.add: Timed = lambda: self.scheme.add(running, more)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> Sealed:
        plain = self._coded.plain(rank)
        return ThresholdSealer(self.scheme, self._public, rank).encrypt(plain, SLOT)

    def _answer(self, rank: int) -> Any:
        # Test data and a state that is not kept: a real party answers once.
        answer, _ = self._parties[rank].partial(
            Answered(), self._total, SLOT, range(PARTIES), lambda _state: None
        )
        return answer

    def _decrypt(self) -> None:
        lanes = combine(self.scheme, self._total, [self._answer(0), self._theirs])
        self.mean = self._coded.mean(lanes, self._total)

    def max_error(self) -> float:
        """Against the float64 mean."""
        return worst(self.mean, self._updates)


def _single_keys() -> None:
    CkksSecret.generate(DEFAULT_CKKS)


def _tenseal_keys() -> None:
    ts = tenseal()
    moduli = list(shortest_moduli(PARTIES))
    ts.context(ts.SCHEME_TYPE.CKKS, 2 * SLOTS, coeff_mod_bit_sizes=moduli, n_threads=1)


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time all three in turns; JSON values."""
    setting = Setting(values, PARTIES)
    updates = setting.updates()
    single = fedml(setting, updates)
    shared = ThresholdContender(setting, updates)
    contenders: dict[str, Contender] = {
        SINGLE: single,
        THRESHOLD: shared,
        TENSEAL: shortest_ckks(setting, updates),
    }
    times = take_turns([*contenders.values()], repeats, lambda _n, _m, who: say(who))
    say("keys")
    makers: dict[str, Callable[[], None]] = {SINGLE: _single_keys, TENSEAL: _tenseal_keys}
    keys: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        keys[THRESHOLD].append(agreed()[2])
        for name, maker in makers.items():
            began = time.perf_counter()
            maker()
            keys[name].append(time.perf_counter() - began)
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        error = contender.max_error()
        if error is None or not error <= TOLERANCE:
            raise FlheError(f"{name}: its mean is off by {error}; its times mean nothing")
        found[name] = {phase: min(times[contender.name][phase]) for phase in PHASES}
        found[name] |= {"keys": min(keys[name]), "up": contender.upload_bytes, "error": error}
    found[THRESHOLD]["answer"] = shared.answer_bytes
    return found


def _step(plan: Plan) -> Step:
    values = 1 << (15 if plan.quick else 19)
    return Step(
        f"fedml-threshold-{values}" + ("-quick" if plan.quick else ""),
        lambda say: measure(values, plan.repeats, say),
        f"threshold and single keys, {values:,} values",
        weight=3.0 if plan.quick else 30.0,
    )


TOLD = {"keys": "keys", "encrypt": "encryption", "add": "addition", "decrypt": "decryption"}
"""Phases as they are measured -> as tables call them."""


def report(plan: Plan, found: Found) -> list[Result]:
    """Fig. 12 of a step's result."""
    step = _step(plan)
    entries: list[Entry] = []
    for who, row in found[step.key].items():
        group: Group = "peer" if who == TENSEAL else "ours"
        for phase, what in TOLD.items():
            entries.append(Entry("two parties", who, group, what, "s", measured(row[phase])))
        sizes = {"upload": row["up"]} | ({"answer": row["answer"]} if "answer" in row else {})
        for what, size in sizes.items():
            entries.append(Entry("two parties", who, group, what, "MB", counted(size / MB)))
    values = 1 << (15 if plan.quick else 19)
    notes = (
        f"{values:,} values, two parties; seconds of one party, of the server for one upload; MB of "
        "2^20 bytes. Making a sealer counts as encryption. Decryption under a shared key is one "
        "party's answer and putting both together; the answer is one more message of each.",
        "The paper's threshold variant is CKKS, of an estimated precision of 36 bits; ours is exact, "
        "on integers of 16 bits, as its single key is. Its figure has no numbers in text.",
    )
    chart = Chart("stacked", tuple(TOLD.values()))
    return [
        Result(
            "fedml-figure-12", "FedML-HE, Figure 12", "a shared key and one key",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


FIGURE_12 = Section("fedml-figure-12", "FedML-HE", lambda p: [_step(p)], report, ("Figure 12",))
