"""What ESAFL's encoding and its tables of it get wrong, shown on the encoding as printed.

Source: Wu, Zhang, Luo, "ESAFL", Sec. 5.2.2 and 8.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe_lab.papers.corrections.proof import Found, shows
from flhe_lab.papers.packing import COHORT, ERRORS, LOG_P, TABLE_3, PaperPacking, added, unpacked

N = 1024


def _values(count: int) -> list[NDArray[np.float64]]:
    """Everybody's, uniform in [0, 1]."""
    return [np.random.default_rng(j).random(count) for j in range(COHORT)]  # test data


@shows("esafl-scale")
def _scale() -> Found:
    bits = 47
    coefficients = PaperPacking(COHORT, bits + 1, N).encode(_values(N)[0]).tolist()
    reduced = {(c << LOG_P - bits) % (1 << 16) for c in coefficients}
    largest = (2**16 - 1) * N / 2.0**LOG_P
    return Found(
        f"{N:,} coefficients of {bits} bits, scaled by p = 2^460 and reduced modulo q0 = 2^16: "
        f"all are {max(reduced)}. And whatever is below q0 decodes, divided by p, to "
        f"{largest:.0e} at most.",
        any(coefficients) and reduced == {0} and largest < 1e-100,
    )


@shows("esafl-shift")
def _shift() -> Found:
    width, fields = 21, 4
    alphas = [11, 22, 33, 0]
    beta = sum(a << width * (fields - i) for i, a in enumerate(alphas, 1))
    mask = (1 << width) - 1
    printed = [beta >> width * (fields + 1 - i) & mask for i in range(1, fields)]
    right = [beta >> width * (fields - i) & mask for i in range(1, fields)]
    return Found(
        f"Fields {', '.join(map(str, alphas))}: shifted by T + 1 - i fields, i = 1 to 3 read "
        f"{', '.join(map(str, printed))}; by T - i, {', '.join(map(str, right))}.",
        right == alphas[:3] and printed != right,
    )


@shows("esafl-signs")
def _signs() -> Found:
    count = 2 * N
    vectors, packing = _values(count), PaperPacking(COHORT, 16, N, offset=False)
    exact = np.sum(vectors, axis=0)
    total = added([packing.pack(v) for v in vectors], LOG_P)
    width, mask = packing.width, (1 << packing.width) - 1
    beta = np.array(total[0], object)
    shifts = [width * (packing.fields - i) for i in (1, 2)]
    # Fields as they are, residues added up: what Eq. 10 and Eq. 11 say, but for the shift.
    read = [packing.decode((beta >> shift & mask).astype(np.int64)) for shift in shifts]
    off = float(np.abs(np.concatenate(read) - exact).mean())
    centred = float(np.abs(packing.unpack(total, count, COHORT) - exact).mean())
    return Found(
        f"Nine vectors in [0, 1], decoded without a sign: off by {off:,.0f} on average, where "
        f"sums are {float(exact.mean()):.1f}; centred modulo q0, by {centred:.2f}.",
        off > 10 and centred < 0.05,
    )


@shows("esafl-packing-error")
def _errors() -> Found:
    packing = PaperPacking(COHORT, 32, N)
    count = 2 * N
    vectors = _values(count)
    found = []
    for each in (unpacked(packing), packing):
        total = added([each.pack(v) for v in vectors], LOG_P)
        opened = each.unpack(total, count, COHORT) / COHORT
        found.append(float(np.abs(opened - np.mean(vectors, axis=0)).mean()))
    return Found(
        f"32 bits, mean of nine: off by {found[0]:.1e} without packing and by {found[1]:.1e} with "
        f"it; Table 4 has {ERRORS[0]:.0e} and {ERRORS[1]:.0e}.",
        max(found) < 1e-7 and abs(found[0] / found[1] - 1) < 0.1,
    )


@shows("esafl-counts")
def _counts() -> Found:
    written = PaperPacking(COHORT)
    counted = PaperPacking(COHORT, halves=False, zero=False)
    texts, matches = [], []
    for model in TABLE_3:
        by_text = [p.plaintexts(model.values) for p in (unpacked(written), written)]
        by_table = [p.plaintexts(model.values) for p in (unpacked(counted), counted)]
        matches.append(by_table == list(model.ciphertexts))
        texts.append(
            f"{model.name} {by_text[0]} and {by_text[1]} for {by_table[0]} and {by_table[1]}"
        )
    return Found(
        f"Without packing and with it, by the text for the table's: {'; '.join(texts)}.",
        all(matches),
    )
