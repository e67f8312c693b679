"""How often a layout of batches gives a wrong sum: the paper's, read in two ways, and ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.slots import Slots
from flhe_lab.papers.batchcrypt import Integers, PaperBatch, WrongSumsWarning

COHORTS = (2, 3, 9, 10)
BATCHES = 25
"""Batches of each client in one cell of the table, of 102 values each."""

OURS = "balanced digits"


@dataclass(frozen=True, slots=True)
class Cell:
    """How one way of decoding did on one kind of input.

    Parameters
    ----------
    inputs : str
        What the clients' values were.
    cohort : int
        N.
    layout : str
        Whose slots, and who decoded.
    wrong : float
        Share of slots that are neither the sum nor, where the sum lies beyond 2^r - 1, saturated on
        its side.
    saturated : float
        Share of slots that were taken for overflow, rightly or not.
    worst : int
        Largest difference from the sum, of saturated slots too, in quantization steps.
    """

    inputs: str
    cohort: int
    layout: str
    wrong: float
    saturated: float
    worst: int


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
        "Gaussian, clipped at 5.83 sigma": bell(largest / 5.83),
        "Gaussian, scaled in advance": np.rint(bell(largest / 5.83) / cohort).astype(np.int64),
        "-1 or 1": rng.choice(np.array([-1, 1]), shape),
        "all largest": np.full(shape, largest),
        "all smallest": np.full(shape, -largest),
    }


def balanced(values: Integers, bits: int = 16, key_bits: int = 2048) -> Integers:
    """Sums of clients' vectors, shape (cohort, count), by our slots: signed balanced digits."""
    cohort, count = values.shape
    slots = Slots((1 << bits) - 1, cohort, key_bits - 1)
    totals = [sum(batch) for batch in zip(*map(slots.pack, values), strict=True)]
    return slots.unpack(totals, count, cohort).astype(np.int64)


def compare(
    cohorts: Sequence[int] = COHORTS,
    *,
    bits: int = 16,
    key_bits: int = 2048,
    batches: int = BATCHES,
) -> list[Cell]:
    """Add batches of every kind of input, by the paper's layout and by ours."""
    found = []
    for cohort in cohorts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WrongSumsWarning)  # the table says it
            papers = [PaperBatch(cohort, bits, reader=reader) for reader in ("text", "program")]
        size = papers[0].slots(key_bits)
        for name, values in inputs(cohort, size * batches, bits).items():
            for paper in papers:
                cut = [values[:, at : at + size] for at in range(0, size * batches, size)]
                parts = [paper.decode(sum(map(paper.encode, batch)), size) for batch in cut]
                sums, full = (np.concatenate(part) for part in zip(*parts, strict=True))
                layout = f"paper, as its {paper.reader}"
                found.append(_judge(name, layout, values, sums, full, paper.largest))
            sums, full = balanced(values, bits, key_bits), np.zeros(values.shape[1], np.bool_)
            found.append(_judge(name, OURS, values, sums, full, papers[0].largest))
    return found


def _judge(
    name: str, layout: str, values: Integers, sums: Integers, full: NDArray[np.bool_], largest: int
) -> Cell:
    exact = values.sum(axis=0)
    beyond = (np.abs(exact) > largest) & (sums == np.sign(exact) * largest)
    wrong = (sums != exact) & ~beyond
    worst = int(np.abs(sums - exact).max())
    return Cell(name, values.shape[0], layout, float(wrong.mean()), float(full.mean()), worst)
