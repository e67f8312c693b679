"""Tables 3 and 4 of ESAFL's paper as data: ciphertexts, traffic, error; its encoding and ours.

Nine clients, three models. Who takes part, each with and without packing:

- *paper, as counted*: the paper's scheme with the canonical embedding, n/2 values a polynomial, T = 21
  polynomials a plaintext, none of them zero: the reading of Sec. 5.2.2 that gives Table 3's counts;
- *paper, as written*: n values a polynomial, T - 1 polynomials a plaintext, coefficients modulo q0;
- *ours*: coefficient packing, in the paper's ring with our corrections, and in the others; moduli are
  as small as the slots allow, within the preset's bound.

Ciphertexts and bytes are counted. Errors are measured: vectors are encoded, encrypted by all nine,
added, decrypted, and compared with the exact sum. Encryption as printed takes 0.15 s a ciphertext, so
of each vector only the first plaintexts are taken (`measured` values); ours
encrypts whole vectors. Values are uniform in [0, 1], which the paper normalizes to (Fig. 2).

How the paper's numbers come about:

- plain traffic is 8 bytes a gradient, in MB of 2^20 bytes: float64, or float32 up and down;
- a ciphertext is n log2 q bits, 1.867 MB; traffic is up and down, 3.734 MB a ciphertext. That gives
  287.55 for 287.60, 918.66 for 918.81, 44.81 for 44.82. FCN's packed 1.87 MB alone is one way only;
- the text has n values a polynomial, which would halve all counts, and a zero polynomial, which would
  make LSTM's packed count 13;
- errors "of 10^-9" with packing at 32 bits are those of a mean, a sum divided by nine. Without packing
  10^-2 is reported, also at 32 bits: by the text both encode alike and are equally exact, as is found
  here. Sums of 16 bits are off by about as much: 0.004 as counted, 0.03 as written.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 8.1.2 and 8.2, Tables 3 and 4.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.schemes.esafl.keys import EsheKey, Total, draw_own
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.presets import DEFAULT_ESHE
from flhe.schemes.sealed import Sealed
from flhe_lab.bench import SLOT, Progress
from flhe_lab.papers.esafl import BrokenSchemeWarning, PaperEshe
from flhe_lab.papers.packing import PaperPacking, added, unpacked

COHORT = 9
BITS = (16, 32)
"""Table 3's precision, and Table 4's."""

MB = 1 << 20
"""The paper's megabyte."""

DIMENSION = 1 << 15
RINGS = ("paper-32768", DEFAULT_ESHE, "rns-8192", "rns-16384")
SAMPLE = 2
"""Plaintexts of each vector that are encrypted as printed."""

NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Model:
    """One of the paper's models, and what its tables say.

    Parameters
    ----------
    name : str
        Its name there.
    values : int
        Weights.
    ciphertexts, traffic : tuple
        Table 3: without packing, with it; MB of an iteration.
    plain_traffic : float
        MB of an iteration without encryption.
    """

    name: str
    values: int
    ciphertexts: tuple[int, int]
    traffic: tuple[float, float]
    plain_traffic: float


MODELS = (
    Model("FCN", 101_770, (7, 1), (26.15, 1.87), 0.78),
    Model("AlexNet", 1_250_000, (77, 4), (287.60, 14.94), 9.54),
    Model("LSTM", 4_020_000, (246, 12), (918.81, 44.82), 30.67),
)
PAPER_ERRORS = (1e-2, 1e-9)
"""Table 4, of all three models: without packing, with it; magnitudes, at 32 bits."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to encrypt one model's update.

    Parameters
    ----------
    encoding : str
        Whose, and how it is read.
    bits : int
        Of a value: log2 q0, or those of an integer.
    packed : bool
        Whether a coefficient holds several values.
    ciphertexts : int
        Polynomials that a client uploads.
    upload_bytes : int
        Their length; the sum that comes back is as long.
    measured : int
        Values of the vector that were really encrypted, added and decrypted; 0: counted only.
    error : float or None
        Mean absolute error of the sum of nine; a ninth of it is that of the mean.
    """

    encoding: str
    bits: int
    packed: bool
    ciphertexts: int
    upload_bytes: int
    measured: int
    error: float | None

    @property
    def traffic_mb(self) -> float:
        """Up and down, MB of 2^20 bytes."""
        return 2 * self.upload_bytes / MB


def measure(
    model: Model,
    bits: int,
    *,
    n: int = DIMENSION,
    sample: int | None = SAMPLE,
    rings: Sequence[str] = RINGS,
    progress: Progress | None = None,
    done: tuple[int, int] = (0, 1),
) -> list[Row]:
    """Everybody's row for one model and precision.

    Parameters
    ----------
    model : Model
        How many values.
    bits : int
        Precision.
    n : int
        Dimension of the paper's ring; smaller ones are for trying it out.
    sample : int or None
        Plaintexts that are encrypted as printed; None for all.
    rings : sequence of str
        Presets of ours.
    progress, done
        Receives `done` and what is going on.
    """

    def say(what: str) -> None:
        if progress is not None:
            progress(*done, f"{model.name}, {bits} bits: {what}")

    as_counted = PaperPacking(COHORT, bits, n, halves=False, zero=False)
    as_written = PaperPacking(COHORT, bits, n, offset=False)
    found = []
    for name, packing in (("paper, as counted", as_counted), ("paper, as written", as_written)):
        for each in (unpacked(packing), packing):
            say(name)
            found.append(_paper_row(name, model, each, sample))
    for ring in rings:
        say(f"ours, {ring}")
        found += _our_rows(model, bits, ring)
    return found


def _updates(count: int) -> Iterator[NDArray[np.float64]]:
    """Everybody's values, uniform in [0, 1], always the same."""
    for j in range(COHORT):
        yield np.random.default_rng(j).random(count)  # test data; keys never come from here


def _paper_row(name: str, model: Model, packing: PaperPacking, sample: int | None) -> Row:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenSchemeWarning)  # the table is there to show it
        eshe = PaperEshe(COHORT, packing.n, weight=min(64, packing.n))
    plaintexts = packing.plaintexts(model.values)
    some = plaintexts if sample is None else min(sample, plaintexts)
    count = min(model.values, some * packing.capacity)
    a, exact = eshe.public(), np.zeros(count)
    s = [0] * packing.n
    totals = None
    for values in _updates(count):
        key = eshe.key()
        s = [x + y for x, y in zip(s, key, strict=True)]
        parts = [eshe.encrypt(a, key, m) for m in packing.pack(values)]
        totals = parts if totals is None else added([totals, parts], eshe.log_q)
        exact += values
    assert totals is not None
    opened = packing.unpack([eshe.decrypt(a, s, total) for total in totals], count, COHORT)
    error = float(np.abs(opened - exact).mean())
    nbytes = plaintexts * packing.n * eshe.log_q // 8
    return Row(name, packing.log_q0, packing.fields > 1, plaintexts, nbytes, count, error)


def _our_rows(model: Model, bits: int, ring: str) -> list[Row]:
    """Packed, and in the paper's ring also with one value a coefficient, which is only counted."""
    scheme = Eshe(COHORT, bits, ring)
    sizes, levels = scheme.sizes, scheme.space.bound
    group_key, exact = bytes(32), np.zeros(model.values)  # it guards nothing but random numbers
    owns = [draw_own(sizes.n) for _ in range(COHORT)]
    s: Total = np.add.reduce(owns, dtype=np.int32)
    total: Sealed | None = None
    for j, values in enumerate(_updates(model.values)):
        sealer = EsheSealer(scheme, group_key, j, EsheKey(owns[j], s))
        plain = Plain(np.rint(values * levels).astype(np.int32), NOTHING)
        total = scheme.add(total, sealer.encrypt(plain, SLOT))
        exact += values
    assert total is not None
    opened = EsheOpener(scheme, group_key, s).decrypt(total) / levels
    error = float(np.abs(opened - exact).mean())
    count = sizes.slots.count(model.values)
    name = f"ours, {ring}"
    packed = Row(
        name, bits, True, -(-count // sizes.n), scheme.nbytes(model.values), model.values, error
    )
    if not ring.startswith("paper"):
        return [packed]
    one_a_coefficient = scheme.limbs.nbytes(model.values)
    alone = Row(name, bits, False, -(-model.values // sizes.n), one_a_coefficient, 0, None)
    return [alone, packed]
