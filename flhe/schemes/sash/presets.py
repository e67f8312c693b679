"""Named parameters of SASH's generator of masks; see `flhe.schemes.presets`.

The paper's own form, a matrix in place of the ring, is in `flhe_lab.papers.sash`. With q = 2^64 and
mu = 736 it is rated 132 bits; but the rounding errors of an opened sum tell of the last two honest
senders, and leave 101, 93 or 86 bits at 10^6, 10^7 or 10^8 values (with mu = 1024 145, 132 or 121).
"""

from __future__ import annotations

from flhe.schemes.presets import RingPreset, named

SASH = named(
    RingPreset(
        "ring-2048",
        2048,
        64,
        258,
        "lattice-estimator, as LWE of dimension 2048: 412, and 258 counting what the carries of a sum "
        "over 10^7 values tell",
    ),
)
"""Rings over q = 2^64 - 2^32 + 1; mu, the field elements of one seed, is the dimension. SASH's own
mu = 512 has 91 bits of security (`flhe_lab.papers.sash`)."""

DEFAULT_SASH = "ring-2048"
