"""Threshold decryption: every set of t parties opens the sum, fewer open nothing.

Ciphertexts and answers are read a second time with Python's integers, whole products by way of one
long integer, and the key that no party has is put together from what all of them drew.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.math.prg import FieldElements
from flhe.math.sampling import SIGMA
from flhe.schemes.esafl.scheme import ESHE
from flhe_lab.papers.lattice import primal_errors
from flhe_lab.variants.threshold import keys as threshold_keys
from flhe_lab.variants.threshold import opening as threshold_opening
from flhe_lab.variants.threshold.adder import CHECKS, ThresholdRlwe
from flhe_lab.variants.threshold.opening import Party, combine, opening_name
from flhe_lab.variants.threshold.sealer import ThresholdSealer
from flhe_lab.variants.threshold.sizes import Flooded, ciphertext_noise, sizes_for
from tests.laws import OTHER_SLOTS
from tests.rings import multiply
from tests.sim.variants.parties import (
    SMALL,
    added,
    begun,
    each,
    group,
    halves,
    length,
    lifted,
    setup,
    small,
    vectors,
)

# --- what it is for ---


@pytest.mark.parametrize(("bits", "chosen"), [(2, (1, 3)), (8, (0, 2, 3)), (32, (1, 2, 3))])
def test_any_t_parties_open_the_sum_of_any_senders(bits: int, chosen: tuple[int, ...]) -> None:
    some = group(4, len(chosen), bits)
    xs = {r: x for r, x in vectors(some.scheme, 4097).items() if r != 1}
    total = some.total(xs)
    assert total.data.size == some.scheme.nbytes(4097)
    out = combine(some.scheme, total, chosen, some.answers(total, chosen))
    assert out.tolist() == np.sum(list(xs.values()), axis=0, dtype=np.int64).tolist()


def test_the_examples_in_the_documentation() -> None:
    """They run, one after the other, and the sums that they print are those in the comments."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / "threshold.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    for group_, sums in ((names["two"], [11, 22, 33]), (names["five"], [11111, 22222, 33333])):
        assert group_ == sums


# --- noise ---


def test_ciphertexts_hold_values_below_noise() -> None:
    """c0 + c1 s = p E + M, which is read with Python's integers."""
    some = group(3, 2)
    scheme, slots, xs = some.scheme, some.scheme.slots, vectors(some.scheme, length(some.scheme))
    c0, c1 = halves(scheme, some.total(xs))
    key = lifted(scheme, some.secret.tolist())
    numbers = small(scheme, added(scheme, c0, each(scheme, multiply, c1, key)))
    noise = [x >> slots.log_p for x in numbers]
    mask, away = (1 << slots.width) - 1, 3 * slots.bound
    values = [(x >> slots.width * k & mask) - away for x in numbers for k in range(slots.per)]
    assert values == sum(xs.values()).tolist()  # type: ignore[union-attr]
    assert max(map(abs, noise)) <= slots.hidden
    # u e + e'' s + e' of three senders under a key of three parties.
    spread = SIGMA * math.sqrt(3 * (2 * 3 * scheme.sizes.n * SIGMA**2 + 1))
    assert 0.9 < np.std(noise) / spread < 1.1


def test_room_is_proven() -> None:
    for ring, cohort, threshold in itertools.product(ESHE, (2, 5, 10), (2, 5)):
        if threshold > cohort or ring == "goldilocks-4096":
            continue
        sizes = sizes_for(ESHE[ring], cohort, threshold, 8)
        slots = sizes.slots
        assert isinstance(slots, Flooded)
        p, q = 1 << slots.log_p, math.prod(slots.moduli)
        assert (
            q > 2 * p * (ciphertext_noise(sizes.n, cohort) + threshold * 2**slots.smudging) + 2 * p
        )
        assert q.bit_length() <= ESHE[ring].log_q
        assert primal_errors(sizes.n, math.log2(q), SIGMA).bits > 128
        with pytest.raises(ConfigError, match="do not fit a modulus"):
            dataclasses.replace(slots, per=slots.per + 64 // slots.width + 1)
        with pytest.raises(ConfigError, match=r"2\^40 times the noise"):
            dataclasses.replace(slots, smudging=slots.smudging - 1, hidden=slots.hidden * 2)


# --- answers that do not fit ---


@pytest.mark.parametrize("chosen", [(0,), (0, 1, 2), (1, 1), (1, 0), (1, 5), (-1, 1), (), (0, 2)])
def test_parties_that_do_not_open_a_sum_together(chosen: tuple[int, ...]) -> None:
    five = group(5, 2)
    total = five.total(vectors(five.scheme, 9))
    says = "party 1 is not one" if chosen == (0, 2) else "exactly 2 different parties"
    with pytest.raises(ProtocolError, match=says):
        Party(five.scheme, five.keys[1]).partial(total, chosen)


def test_answers_that_are_no_answers() -> None:
    some = group(3, 2)
    total, other = (some.total(vectors(some.scheme, 5000)) for _ in range(2))
    told, theirs = some.answers(total, (0, 1)), some.answers(other, (0, 1))
    # In many coefficients: one alone is found about every other time, as q is hardly too large.
    altered = told[1][:1000] + bytes(2000) + told[1][3000:]
    for partials, error, match in [
        ({0: told[0]}, QuorumError, "of parties 1 are missing"),
        ({}, QuorumError, "of parties 0, 1 are missing"),
        ({**told, 2: told[1]}, ProtocolError, r"of others than \[0, 1\]"),
        ({**told, 1: told[1][:-1]}, ProtocolError, "of another length"),
        ({**told, 1: b"\xff" * len(told[1])}, ProtocolError, "below its modulus|after the last"),
        ({**told, 1: theirs[1]}, ProtocolError, "a partial decryption does not fit"),
        ({**told, 1: some.answers(total, (1, 2))[1]}, ProtocolError, "does not fit"),
        ({**told, 1: altered}, ProtocolError, "does not fit"),
    ]:
        with pytest.raises(error, match=match):
            combine(some.scheme, total, (0, 1), partials)


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_short_sum_is_known_from_garbage(length: int) -> None:
    """However short: zeros follow the values. Noise alone would not tell, see `CHECKS`."""
    some = group(2, 2)
    total = some.total(vectors(some.scheme, length))
    told = some.answers(total, (0, 1))
    assert combine(some.scheme, total, (0, 1), told).size == length
    for _ in range(20):
        again = some.answers(some.total(vectors(some.scheme, length)), (0, 1))
        with pytest.raises(ProtocolError, match="a partial decryption does not fit"):
            combine(some.scheme, total, (0, 1), {**told, 1: again[1]})


# --- setup ---


def test_a_key_of_another_group_opens_nothing() -> None:
    some, others = group(3, 2), setup(ThresholdRlwe(3, 2, 16, SMALL))
    total = some.total(vectors(some.scheme, 50))
    for make in (
        lambda: Party(some.scheme, others.keys[0]),
        lambda: ThresholdSealer(some.scheme, others.public, 0),
    ):
        with pytest.raises(ConfigError, match="not the one that the parameters name"):
            make()
    with pytest.raises(ProtocolError, match="does not fit"):
        combine(some.scheme, total, (0, 1), others.answers(total, (0, 1)))
    # Nothing secret is in sight.
    held = [some.drawn[0], some.keys[0], Party(some.scheme, some.keys[0])]
    for name in ("own=", "share=", "pairs=", "array("):
        assert not any(name in repr(x) for x in held), name


def test_setup_refuses() -> None:
    scheme = ThresholdRlwe(3, 2, 16, SMALL)
    reveal, finish = threshold_keys.reveal, threshold_keys.finish
    states, commitments = begun(scheme)
    assert len(set(commitments)) == 3
    for wrong, says in (
        (commitments[:2], "2 commitments, all 3"),
        ([bytes(32), *commitments[1:]], "own commitment was changed"),
    ):
        with pytest.raises(ProtocolError, match=says):
            reveal(scheme, states[0], wrong)
    shown = [reveal(scheme, state, commitments) for state in states]
    boxes = [boxes[0] for boxes in shown]
    again = reveal(scheme, states[0], commitments)
    assert np.array_equal(again[1].share, shown[0][1].share)
    for told, says in (
        (boxes[:2], "shares of 2 parties, all 3 must"),
        ([boxes[0], boxes[2], boxes[2]], "rank 1 is not the one that it committed to"),
    ):
        with pytest.raises(ProtocolError, match=says):
            finish(scheme, states[0], commitments, told)


# --- what is refused ---


@pytest.mark.parametrize(
    ("cohort", "threshold", "how", "says"),
    [
        (3, 1, {}, "threshold must be 2 to the cohort"),
        (3, 4, {}, "threshold must be 2 to the cohort"),
        (3, 2, {"bits": 1}, "bits must be 2 to 32"),
        (3, 2, {"key_id": bytes(8)}, "32 bytes"),
        (3, 2, {"ring": "goldilocks-4096"}, "does not fit log q = 64"),
        (64, 33, {}, "noise of more than 63 bits"),
    ],
)
def test_parameters_that_are_refused(
    cohort: int, threshold: int, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ThresholdRlwe(cohort, threshold, **how)


def test_residues_beyond_their_modulus_are_not_added() -> None:
    some = group(3, 2)
    xs = vectors(some.scheme, 50)
    total, part = some.sealed(0, xs[0]), some.sealed(1, xs[1])
    before = total.data.copy()
    wrong = dataclasses.replace(part, data=np.full_like(part.data, 255))
    with pytest.raises(ProtocolError, match=r"below its modulus|after the last"):
        some.scheme.add(total, wrong)
    assert np.array_equal(total.data, before)


# --- what must never be the same twice: sums open all the same where one of these repeats ---


def unlike(rows: list[NDArray[Any]], chance: float) -> bool:
    """Whether no two rows agree in more places than independent ones would: `chance`, three times."""
    pairs = itertools.combinations(rows, 2)
    return all(np.mean(one == two) < 3 * chance for one, two in pairs)


SAME_SAMPLE = 0.07
"""Odds that two samples of a discrete Gaussian of sigma 4.53 are equal."""

SAME_RESIDUE = 0.001
"""Far more than the odds that two residues of 30 bits and more are; less than of equal streams."""


def test_noise_of_encryption_never_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """u, e' and e'' of all blocks of two pieces, and of another vector."""
    some = group(3, 2)
    n, step = some.scheme.sizes.n, some.scheme.sizes.step
    drawn: list[NDArray[np.int8]] = []
    write = ThresholdSealer._write

    def seen(self: ThresholdSealer, *how: Any) -> None:
        for samples in how[4:]:
            drawn.extend(samples[: samples.size // n * n].reshape(-1, n))
        write(self, *how)

    monkeypatch.setattr(ThresholdSealer, "_write", seen)
    x = vectors(some.scheme, (step + n) * some.scheme.slots.per - CHECKS)[0]
    some.sealed(0, x)
    some.sealed(0, x[:4096])
    assert len(drawn) == 3 * (step // n + 1) + 2
    assert unlike(drawn, SAME_SAMPLE)


def test_noise_and_masks_of_answers_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """E_j and Z of all blocks of two pieces and of all limbs, for two sums and two T."""
    rows: dict[bytes, NDArray[np.uint64]] = {}

    class Watched(FieldElements):
        def blocks(self, *how: Any) -> NDArray[np.uint64]:
            out = super().blocks(*how)
            rows.update({row.tobytes(): row.copy() for row in out})
            return out

    some = group(3, 2)
    scheme, (n, step) = some.scheme, (some.scheme.sizes.n, some.scheme.sizes.step)
    x = vectors(scheme, (step + n) * scheme.slots.per - CHECKS)
    total = some.total(x)
    short = some.total({r: v[:50] for r, v in x.items()}, OTHER_SLOTS["round"])
    monkeypatch.setattr(threshold_opening, "FieldElements", Watched)
    # Of two parties: each has noise of its own, and both the same masks.
    each, blocks = 2 + len(scheme.rings), step // n + 1
    for sum_, chosen, count in ((total, (0, 1), blocks), (short, (0, 1), 1), (short, (0, 2), 1)):
        before = len(rows)
        some.answers(sum_, chosen)
        assert len(rows) - before == count * each
    assert unlike(list(rows.values()), SAME_RESIDUE)


def test_an_opening_has_the_name_of_all_that_it_is_of() -> None:
    some = group(3, 2)
    total = some.total(vectors(some.scheme, 5))
    others = [
        dataclasses.replace(total, slot=OTHER_SLOTS["round"]),
        dataclasses.replace(total, senders=(0, 1)),
        dataclasses.replace(total, data=total.data[::-1].copy()),
    ]
    names = [opening_name(total, chosen) for chosen in ((0, 1), (0, 2), (1, 2))]
    names += [opening_name(other, (0, 1)) for other in others]
    assert len(set(names)) == 6


def test_coefficients_of_sharing_polynomials_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """By degree, limb and party; of f = s + a (x + x^2), two shares would give s."""
    rows: list[NDArray[np.uint64]] = []
    share = threshold_keys.shares

    def seen(secret: Any, moduli: Any, count: int, terms: Any) -> Any:
        rows.extend(row for term in terms for row in term)
        return share(secret, moduli, count, terms)

    monkeypatch.setattr(threshold_keys, "shares", seen)
    scheme = setup(ThresholdRlwe(3, 3, 16, SMALL)).scheme
    assert len(rows) == 3 * 2 * len(scheme.rings)
    assert unlike(rows, SAME_RESIDUE)
