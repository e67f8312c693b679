"""What BatchCrypt's text gets wrong or leaves open, shown on its layout, its Eq. 1 and its peer.

Source: Zhang et al., "BatchCrypt", USENIX ATC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from flhe.coding.slots import Slots
from flhe_lab.papers.batchcrypt import Integers, PaperBatch, Reader
from flhe_lab.papers.corrections.proof import Found, shows


@shows("batchcrypt-overflow")
def _overflow() -> Found:
    batch, cohort = PaperBatch(3, 8), 3
    largest = batch.largest
    total = sum(batch.encode(np.full(1, largest)) for _ in range(cohort))
    decoded, full = batch.decode(total, 1)
    return Found(
        f"r = 8, three times {largest}: {cohort * largest}, read as "
        f"{'overflow below' if full[0] else 'no overflow'}, which gives {decoded[0]}.",
        bool(full[0]) and decoded[0] == -largest,
    )


READERS: tuple[Reader, ...] = get_args(Reader)
OURS = "balanced digits"
BELL, SCALED = "Gaussian, clipped at 5.83 sigma", "Gaussian, scaled in advance"


def inputs(cohort: int, count: int, bits: int = 16) -> Mapping[str, Integers]:
    """Kinds of quantized values, each of shape (cohort, count)."""
    largest = (1 << bits) - 1
    rng = np.random.default_rng(3)  # test data; keys and masks never come from here
    shape = cohort, count

    def bell(width: float) -> Integers:
        drawn = np.rint(rng.standard_normal(shape) * width).astype(np.int64)
        return np.clip(drawn, -largest, largest)

    return {
        "uniform": rng.integers(-largest, largest + 1, shape),
        "Gaussian, clipped at 2.5 sigma": bell(largest / 2.5),
        BELL: bell(largest / 5.83),
        SCALED: np.rint(bell(largest / 5.83) / cohort).astype(np.int64),
        "-1 or 1": rng.choice(np.array([-1, 1]), shape),
        "all largest": np.full(shape, largest),
        "all smallest": np.full(shape, -largest),
    }


def balanced(values: Integers, bits: int = 16, key_bits: int = 2048) -> Integers:
    """Sums of clients' vectors, shape (cohort, count), by our slots: signed balanced digits."""
    cohort, count = values.shape
    slots = Slots((1 << bits) - 1, cohort, key_bits - 1)
    totals = [sum(batch) for batch in zip(*map(slots.pack, values), strict=True)]
    return slots.digits(totals, count, cohort).astype(np.int64)


Cell = tuple[float, int]
"""Share of slots that are neither the sum nor, where that lies beyond 2^r - 1, saturated on its side;
largest difference from the sum, of saturated slots too, in quantization steps."""


def compare(
    cohorts: Sequence[int], batches: int, *, bits: int = 16, key_bits: int = 2048
) -> dict[tuple[int, str, str], Cell]:
    """(cohort, inputs, layout) -> how wrong sums are: of the paper, by text or program, and ours."""
    found = {}
    for cohort in cohorts:
        papers = {reader: PaperBatch(cohort, bits, reader=reader) for reader in READERS}
        size, largest = papers["text"].slots(key_bits), papers["text"].largest
        for name, values in inputs(cohort, size * batches, bits).items():
            exact = values.sum(axis=0)
            sums = {OURS: balanced(values, bits, key_bits)}
            for reader, paper in papers.items():
                cut = [values[:, at : at + size] for at in range(0, size * batches, size)]
                read = [paper.decode(sum(map(paper.encode, batch)), size)[0] for batch in cut]
                sums[reader] = np.concatenate(read)
            for layout, each in sums.items():
                beyond = (np.abs(exact) > largest) & (each == np.sign(exact) * largest)
                wrong = float(((each != exact) & ~beyond).mean())
                found[cohort, name, layout] = wrong, int(np.abs(each - exact).max())
    return found


@shows("batchcrypt-carries")
def _carries() -> Found:
    cells = compare((3, 9), 1)
    program = [cells[n, BELL, "program"][0] for n in (3, 9)]
    off = [cells[9, SCALED, reader][1] for reader in ("text", "program")]
    ours = max(wrong for (_, _, layout), (wrong, _) in cells.items() if layout == OURS)
    return Found(
        f"16 bits, values of a bell, as the authors' program reads them: {program[0]:.0%} of the "
        f"sums of three are wrong, {program[1]:.0%} of nine. Scaled in advance, sums of nine are "
        f"off by up to {off[0]} steps as the text reads, {off[1]:,} as the program does. Balanced "
        f"digits: {ours:.0%} wrong.",
        program[0] > 0.1 and program[1] > 0.5 and off[0] > 0 and off[1] > 10_000 and ours == 0,
    )


@shows("batchcrypt-capacity")
def _capacity() -> Found:
    batches = {8: 200, 16: 100, 32: 50}
    room = {bits: PaperBatch(9, bits).slots(2048) for bits in batches}
    needs = batches[8] * PaperBatch(9, 8).slot_bits
    bare = {
        bits: 2048 // (PaperBatch(9, bits).slot_bits - 2) for bits in batches
    }  # no zeros between
    return Found(
        "Slots of r + 4 bits under 2048 bits: "
        + ", ".join(f"{room[b]} of {b} bits for {n} in the paper" for b, n in batches.items())
        + f". 200 take {needs:,} bits. Without zeros there is room for {bare[8]}.",
        room[8] < 200
        and all(room[b] >= batches[b] for b in (16, 32))
        and all(bare[b] >= n for b, n in batches.items()),
    )


@shows("batchcrypt-eq-1")
def _eq_1() -> Found:
    from flhe.coding.aciq import ratio
    from flhe_lab.papers.daciq import best, error, two_tailed

    bits = 8
    rounding = (2.0**bits - 2) / 3 * 2.0 ** (1 - 3 * bits)

    def printed(a: float) -> float:
        tail = (a**2 + 1) / 2 * math.erfc(a / math.sqrt(2))
        return tail - a * math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) + rounding * a**2

    low = best(printed)
    x = np.linspace(low, low + 10, 100_001)
    bell = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    cut = float(2 * ((x - low) ** 2 * bell).sum() * (x[1] - x[0]))
    said = printed(low) - rounding * low**2
    steps = math.sqrt(rounding / (1 / 6 / (2**bits - 1) ** 2))
    return Found(
        f"r = {bits}: the print is least at {low:.4f} sigma, with both tails at "
        f"{two_tailed(bits):.4f}. At {low:.4f} its integrals are {cut:.2e} sigma^2, its closed "
        f"form {said:.2e}. The steps in its last term are {steps:.2f} times those of Sec. 4.2; "
        f"for these, the least error is at {ratio(bits + 1):.4f}, and the print's threshold costs "
        f"{error(bits + 1, low) / error(bits + 1, ratio(bits + 1)) - 1:.0%} more.",
        abs(cut / said - 2) < 0.01 and low < two_tailed(bits) and 1.9 < steps < 2.1,
    )


@shows("batchcrypt-ranges")
def _ranges() -> Found:
    rng = np.random.default_rng(9)  # test data
    lone, bias = rng.standard_normal(1), rng.standard_normal(10)
    # One record, softmax and cross entropy: the bias' gradient is p - y, negative at the label alone.
    gradient = np.exp(bias) / np.exp(bias).sum()
    gradient[3] -= 1
    sent = (float(gradient.min()), float(gradient.max()))
    right = math.exp(bias[3]) / np.exp(bias).sum()
    # What is opened here: the mean square of all clients together, of the layer of one value.
    others = rng.standard_normal(8)
    opened = math.sqrt((lone[0] ** 2 + (others**2).sum()) / 9)
    return Found(
        f"A layer of one value sends {lone.min():.4f} to {lone.max():.4f}: that is the gradient. "
        f"Of one record, the last bias sends {sent[0]:.3f}: the label's probability was "
        f"{1 + sent[0]:.3f}, exactly. The root mean square of nine clients is {opened:.4f}, which "
        "is nobody's.",
        lone.min() == lone.max() == lone[0]
        and abs(1 + sent[0] - right) < 1e-12
        and bool(np.all(np.abs(opened - np.abs([*lone, *others])) > 1e-3)),
    )


@shows("batchcrypt-exponents")
def _exponents() -> Found:
    from phe import paillier

    public, _ = paillier.generate_paillier_keypair(n_length=512)
    values = [3.7e-5, -0.021, 0.48]
    sent = [public.encrypt(v).exponent for v in values]
    # A significand of 53 bits: its exponent, base 16, tells the size to a factor of 16.
    sizes = [16.0 ** (e + 13) for e in sent]
    near = all(s / 16 <= abs(v) <= s * 16 for s, v in zip(sizes, values, strict=True))
    return Found(
        f"python-paillier encrypts {', '.join(map(str, values))} with exponents "
        f"{', '.join(map(str, sent))} in clear: the size of each gradient to a factor of 16, and "
        "whether two are of one size.",
        near and len(set(sent)) == len(values),
    )
