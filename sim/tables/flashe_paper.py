"""What FLASHE's text and tables say in numbers; its figures are pictures without any.

Sizes are as the paper has them, in units of 1024. Hours, GB and USD of Table 4, and the rounds of
Sec. 6.3, are in `flhe_lab.papers.convergence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024.0
MIB = KIB * KIB
GIB = KIB * MIB

COHORT = 10
"""Clients, Sec. 6.1; ciphertexts that are added, Table 2."""

MODELS = ("resnet20", "gru", "cnn")
"""Sec. 6.1, by growing size."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of Table 2.

    Parameters
    ----------
    values : int
    method : str
        As the table calls it.
    size : float
        Bytes.
    encrypt_s, decrypt_s : float or None
        Seconds; None where memory did not suffice.
    add_s : float or None
        Seconds for ten ciphertexts; None where memory did not suffice.
    """

    values: int
    method: str
    size: float
    encrypt_s: float | None
    decrypt_s: float | None
    add_s: float | None


TABLE_2 = (
    Line(16384, "Pai", 8.00 * MIB, 20.02, 11.52, 5.41),
    Line(16384, "Pai+bat", 96.51 * KIB, 0.46, 0.37, 0.06),
    Line(16384, "FV", 513.09 * MIB, 30.18, 29.23, 6.50),
    Line(16384, "FV+bat", 1.00 * MIB, 1.15, 1.14, 0.01),
    Line(16384, "CKKS", 6.60 * GIB, 66.74, 45.93, 187.28),
    Line(16384, "CKKS+bat", 1.65 * MIB, 0.02, 0.01, 0.05),
    Line(16384, "FLASHE", 40.02 * KIB, 0.17, 0.18, 0.01),
    Line(65536, "Pai", 32.00 * MIB, 79.48, 45.78, 21.66),
    Line(65536, "Pai+bat", 386.02 * KIB, 1.17, 0.78, 0.25),
    Line(65536, "FV", 2.00 * GIB, 122.67, 114.54, None),
    Line(65536, "FV+bat", 4.00 * MIB, 1.14, 1.15, 0.04),
    Line(65536, "CKKS+bat", 6.60 * MIB, 0.07, 0.05, 0.20),
    Line(65536, "FLASHE", 160.02 * KIB, 0.18, 0.18, 0.02),
    Line(262144, "Pai", 128.00 * MIB, 317.62, 182.58, 86.58),
    Line(262144, "Pai+bat", 1.51 * MIB, 4.02, 2.44, 1.01),
    Line(262144, "FV", 8.02 * GIB, 479.22, 450.18, None),
    Line(262144, "FV+bat", 16.00 * MIB, 1.66, 1.68, 0.18),
    Line(262144, "CKKS+bat", 26.40 * MIB, 0.29, 0.20, 0.87),
    Line(262144, "FLASHE", 640.02 * KIB, 0.20, 0.20, 0.11),
)
"""CKKS without batches ran out of memory beyond 16,384 values: it has no line there."""

PLAIN_BYTES = {16384: 40.02 * KIB, 65536: 160.02 * KIB, 262144: 640.02 * KIB}
"""Table 2's plaintexts: 20 bits a value, as wide as a sum of ten."""

MODES: Mapping[str, str] = {
    "plain": "plain",
    "FLASHE": "FLASHE",
    "Paillier+batch": "Pai+bat",
    "FV+batch": "FV+bat",
    "CKKS+batch": "CKKS+bat",
}
"""Modes of Table 4, as `convergence.REPORTED` calls them: as the paper does."""

SAVED_S = {"resnet20": 1.2, "gru": 1.2, "cnn": 2.1}
"""Seconds that mask precomputation takes off an iteration, Sec. 6.6."""

LEFT_S = 0.1
"""Seconds of encryption and decryption that it leaves at most, Sec. 6.6."""

CROSSOVER_80 = 0.4
"""Dropout rate beyond which single masking is faster among 80 clients, Sec. 6.5."""

GAP_80_S = {"resnet20": 0.7, "cnn": 3.1}
"""Seconds that single masking takes more among 80 clients of whom none drop out, Sec. 6.5: the least
and the most of the three models."""

SPARSE_PLAIN, SPARSE_PAILLIER = 1 / 5, 20.0
"""Uplink with a tenth of the values, as a multiple of plain with all, Sec. 6.4."""
