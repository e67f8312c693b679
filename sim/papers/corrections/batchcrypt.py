"""What BatchCrypt's text gets wrong or leaves open, shown on its layout, its Eq. 1 and its peer.

Source: Zhang et al., "BatchCrypt", USENIX ATC 2020.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from flhe.coding.slots import Slots
from flhe_lab.papers.batchcrypt import PaperBatch, Reader
from flhe_lab.papers.corrections.proof import Found


def _batchcrypt_overflow() -> Found:
    batch, cohort = PaperBatch(8), 3
    largest = batch.largest
    total = sum(batch.encode(np.full(1, largest)) for _ in range(cohort))
    decoded, full = batch.decode(total, 1)
    return Found(
        f"r = 8, three times {largest}: {cohort * largest}, read as "
        f"{'overflow below' if full[0] else 'no overflow'}, which gives {decoded[0]}.",
        bool(full[0]) and decoded[0] == -largest,
    )


def _batchcrypt_carries() -> Found:
    bits, key_bits = 16, 2048
    largest = (1 << bits) - 1
    wrong: dict[tuple[int, str, str], float] = {}
    off: dict[tuple[int, str, str], int] = {}
    for cohort in (3, 9):
        batches = {reader: PaperBatch(bits, reader=reader) for reader in get_args(Reader)}
        shape = cohort, batches["text"].slots(key_bits)
        slots, rng = Slots(largest, cohort, key_bits - 1), np.random.default_rng(3)  # test data
        inputs = {"uniform": rng.integers(-largest, largest + 1, shape)}
        for name, width in (("wide", 2.5), ("bell", 5.83), ("scaled", 5.83)):
            drawn = np.rint(rng.standard_normal(shape) * largest / width)
            inputs[name] = np.clip(drawn, -largest, largest).astype(np.int64)
        inputs["scaled"] = np.rint(inputs["scaled"] / cohort).astype(np.int64)
        for name, values in inputs.items():
            totals = [sum(batch) for batch in zip(*map(slots.pack, values), strict=True)]
            sums = {"ours": slots.digits(totals, shape[1], cohort).astype(np.int64)}
            for reader, batch in batches.items():
                sums[reader] = batch.decode(sum(map(batch.encode, values)), shape[1])[0]
            exact = values.sum(axis=0)
            for layout, found in sums.items():
                # Where the sum lies beyond 2^r - 1, saturated on its side is right.
                full = (np.abs(exact) > largest) & (found == np.sign(exact) * largest)
                wrong[cohort, name, layout] = float(((found != exact) & ~full).mean())
                off[cohort, name, layout] = int(np.abs(found - exact).max())
    program = [wrong[n, "bell", "program"] for n in (3, 9)]
    text, other = (off[9, "scaled", reader] for reader in ("text", "program"))
    ours = max(share for (_, _, layout), share in wrong.items() if layout == "ours")
    return Found(
        f"16 bits, values of a bell, as the authors' program reads them: {program[0]:.0%} of the "
        f"sums of three are wrong, {program[1]:.0%} of nine. Scaled in advance, sums of nine are "
        f"off by up to {text} steps as the text reads, {other:,} as the program does. Balanced "
        f"digits: {ours:.0%} wrong.",
        program[0] > 0.1 and program[1] > 0.5 and text > 0 and other > 10_000 and ours == 0,
    )


def _batchcrypt_capacity() -> Found:
    batches = {8: 200, 16: 100, 32: 50}
    room = {bits: PaperBatch(bits).slots(2048) for bits in batches}
    needs = batches[8] * PaperBatch(8).slot_bits
    # Without zeros between values.
    bare = {bits: 2048 // (PaperBatch(bits).slot_bits - 2) for bits in batches}
    return Found(
        "Slots of r + 4 bits under 2048 bits: "
        + ", ".join(f"{room[b]} of {b} bits for {n} in the paper" for b, n in batches.items())
        + f". 200 take {needs:,} bits. Without zeros there is room for {bare[8]}.",
        room[8] < 200
        and all(room[b] >= batches[b] for b in (16, 32))
        and all(bare[b] >= n for b, n in batches.items()),
    )


def _batchcrypt_eq_1() -> Found:
    from flhe.coding.aciq import ratio
    from flhe_lab.papers.daciq import best, error, rounding, tail, two_tailed

    bits = 8
    low = best(lambda a: tail(a) + rounding(bits) * a**2)  # as printed
    x = np.linspace(low, low + 10, 100_001)
    bell = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    cut = float(2 * ((x - low) ** 2 * bell).sum() * (x[1] - x[0]))
    said, steps = tail(low), math.sqrt(rounding(bits) / (1 / 6 / (2**bits - 1) ** 2))
    return Found(
        f"r = {bits}: the print is least at {low:.4f} sigma, with both tails at "
        f"{two_tailed(bits):.4f}. At {low:.4f} its integrals are {cut:.2e} sigma^2, its closed "
        f"form {said:.2e}. The steps in its last term are {steps:.2f} times those of Sec. 4.2; "
        f"for these, the least error is at {ratio(bits + 1):.4f}, and the print's threshold costs "
        f"{error(bits + 1, low) / error(bits + 1, ratio(bits + 1)) - 1:.0%} more.",
        abs(cut / said - 2) < 0.01 and low < two_tailed(bits) and 1.9 < steps < 2.1,
    )


def _batchcrypt_ranges() -> Found:
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


def _batchcrypt_exponents() -> Found:
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
