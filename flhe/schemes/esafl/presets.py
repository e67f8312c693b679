"""Named rings of ESHE; see `flhe.schemes.presets`."""

from __future__ import annotations

from dataclasses import dataclass

from flhe.schemes.presets import RingPreset, named


@dataclass(frozen=True, slots=True)
class EshePreset(RingPreset):
    """ESHE's ring; `goldilocks`: one limb, q = 2^64 - 2^32 + 1, else as many primes as it takes.

    Keys and errors are discrete Gaussians of one width (`flhe.math.sampling`), so a member who
    knows the sum of all keys, with all but two of the others' keys, still faces errors of 3.2 in
    the two that are left. That is the case which the figures rate.
    """

    goldilocks: bool = False


ESHE = named(
    EshePreset("goldilocks-4096", 4096, 64, 232, "lattice-estimator", goldilocks=True),
    EshePreset("rns-4096", 4096, 104, 134, "lattice-estimator"),
    EshePreset("rns-8192", 8192, 206, 134, "lattice-estimator"),
    EshePreset("rns-16384", 16384, 420, 132, "lattice-estimator"),
    EshePreset(
        "paper-32768",
        32768,
        478,
        192,
        "ESAFL, Sec. 8.1.2, which says 256; by the Homomorphic Encryption Standard (2018), Table "
        "1, up to 611 bits have 192",
    ),
)
"""Presets of ESHE. Goldilocks is the fastest; the others take fewer bytes, for narrow links; the last
one is the paper's, for its tables."""

DEFAULT_ESHE = "goldilocks-4096"
