"""Noise of ESHE's sums: that they decode, and that what lies above them is distributed as stated.

    python -m flhe.sim.eshe_noise [--coefficients 10000000] [--json FILE]

For each N: N senders encrypt, their ciphertexts are added, sums are decoded and compared with the exact
ones, and the noise beside them is counted. It should be a sum of N discrete Gaussians, each cut at 9
sigma: that distribution's N-fold convolution, computed here without the sampler. Reported are wrong
sums, which must be none; mean and variance, each by how many standard deviations it is off; chi-square
over all values expected EXPECTED times or more, the rest in two tails; the largest noise beside the
bound that decoding allows, 8 sigma sqrt(N).

Senders encrypt one after another, so a thousand of them take no more memory than one. They share an
update, half of it at the border, so that slots are as full as they ever are.

Source: docs/architecture.md, "ESHE, exactly"; ESAFL, Theorem 3 (the sum's width).
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from flhe.coding.base import Plain
from flhe.errors import ConfigError, FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.math.prg import AesCtr
from flhe.math.sampling import SIGMA, Gaussian
from flhe.schemes.eshe import Eshe, EsheOpener, EsheSealer
from flhe.schemes.eshe_keys import EsheKey, Total, draw_own
from flhe.schemes.presets import DEFAULT_ESHE
from flhe.sealed import Sealed, Slot
from flhe.sim.bench import Progress, machine

FORMAT, VERSION = "flhe eshe noise", 1
COHORTS = (2, 16, 100, 1000)
COEFFICIENTS = 10_000_000
BATCH = 1 << 20
"""Coefficients that are encrypted at a time."""

LEAST = 1000
"""Coefficients below which a distribution shows nothing."""

EXPECTED = 25
"""Values that are expected less often go into a tail."""

NOTHING = np.empty(0, np.int64)
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """What came out for one N.

    Parameters
    ----------
    cohort : int
        N.
    coefficients, values : int
        How many were encrypted by each sender, added and decoded.
    wrong : int
        Decoded sums that are not the sum.
    variance, expected_variance : float
        Of the noise.
    mean_deviations, variance_deviations : float
        By how many standard deviations of its own either is off.
    chi_square : float
        Against the stated distribution.
    degrees : int
        Its degrees of freedom.
    p_value : float
        Probability of as large a one.
    largest, bound : int
        Largest noise, and what decoding allows.
    """

    cohort: int
    coefficients: int
    values: int
    wrong: int
    variance: float
    expected_variance: float
    mean_deviations: float
    variance_deviations: float
    chi_square: float
    degrees: int
    p_value: float
    largest: int
    bound: int


def probabilities(cohort: int) -> NDArray[np.float64]:
    """Of a sum of `cohort` errors, value by value, shape (2 N bound + 1,), zero in the middle.

    Convolved in the frequency domain, where N convolutions are a power; good to about 1e-15 each.
    """
    bound = Gaussian().bound
    one = np.exp(-(np.arange(-bound, bound + 1) ** 2) / (2 * SIGMA**2))
    size = 2 * bound * cohort + 1
    spectrum = np.fft.rfft(one / one.sum(), size) ** cohort
    return np.clip(np.fft.irfft(spectrum, size), 0, 1)


def noise(
    cohort: int,
    coefficients: int,
    *,
    bits: int = 16,
    ring: str = DEFAULT_ESHE,
    batch: int = BATCH,
    threads: int = 1,
    progress: Progress | None = None,
) -> Found:
    """Encrypt, add and decode; see what noise came out.

    Parameters
    ----------
    cohort : int
        N.
    coefficients : int
        Of all ciphertexts of one sender together; rounded up to whole batches.
    bits, ring
        As for `Eshe`.
    batch : int
        Coefficients that are encrypted at a time.
    threads : int
        Threads to encrypt and decrypt on.
    progress
        Receives ciphertexts made, those to make, and N.

    Raises
    ------
    ConfigError
        Too few coefficients to say anything.
    """
    if coefficients < LEAST:
        raise ConfigError(f"--coefficients {coefficients}: takes {LEAST:,} or more")
    scheme = Eshe(cohort, bits, ring)
    slots = scheme.sizes.slots
    batches = -(-coefficients // batch)
    size = -(-coefficients // batches)
    counts = np.zeros(2 * slots.noise_bound(cohort) + 1, np.int64)
    owns = [draw_own(scheme.sizes.n) for _ in range(cohort)]
    s: Total = np.add.reduce(owns, dtype=np.int32)
    group_key, wrong = secrets.token_bytes(32), 0
    for number in range(batches):
        slot = Slot(0, bytes(32), bytes(16), 1, number, bytes(32), bytes(32))
        values = _values(scheme, size * slots.per)
        total: Sealed | None = None
        for rank, own in enumerate(owns):
            if progress is not None and rank % 10 == 0:
                progress(number * cohort + rank, batches * cohort, f"N = {cohort}")
            sealer = EsheSealer(scheme, group_key, rank, EsheKey(own, s), threads=threads)
            total = scheme.add(total, sealer.encrypt(Plain(values, NOTHING), slot))
        assert total is not None
        opened = EsheOpener(scheme, group_key, s, threads=threads).decrypt(total)
        wrong += int(np.count_nonzero(opened != values.astype(np.int64) * cohort))
        above = _noise_of(scheme, group_key, s, total)
        counts += np.bincount(above + slots.noise_bound(cohort), minlength=counts.size)
    return judge(cohort, size * batches * slots.per, wrong, counts)


def _values(scheme: Eshe, count: int) -> NDArray[np.int32]:
    """An update: half of it at the borders, half of it anywhere between."""
    rng, bound = np.random.default_rng(7), scheme.space.bound  # test data, no key
    between = rng.integers(-bound, bound + 1, count)
    border = np.where(between < 0, -bound, bound)
    return np.where(rng.random(count) < 0.5, border, between).astype(np.int32)


def _noise_of(scheme: Eshe, group_key: bytes, s: Total, total: Sealed) -> NDArray[np.int32]:
    """E in p E + M, which `EsheOpener` checks and forgets."""
    sizes = scheme.sizes
    slots, count = sizes.slots, sizes.slots.count(total.length)
    masks, residues = np.empty((2, len(slots.moduli), count), np.uint64)
    products = scheme.products(group_key, total.slot, s, AesCtr())
    for at in range(0, count, sizes.step):
        piece = np.empty((len(slots.moduli), min(sizes.step, count - at)), np.uint64)
        products.into(at, piece, products.scratch)
        masks[:, at : at + sizes.step] = piece
    for limb, at, end in scheme.limbs.pieces(count):
        scheme.limbs.read(total.data, count, limb, at, residues[limb, at:end])
    for limb, ring in enumerate(sizes.rings):
        residues[limb] = ring.subtract(residues[limb], masks[limb])
    return slots.lower(residues, total.length, len(total.senders))[1]


def judge(cohort: int, values: int, wrong: int, counts: Counts) -> Found:
    """Compare counts of noise, from -bound to bound, with the stated distribution."""
    bound, drawn = counts.size // 2, int(counts.sum())
    chances = probabilities(cohort)
    support = np.arange(chances.size) - chances.size // 2
    variance = float(chances @ support**2)
    x = np.arange(-bound, bound + 1)
    mean = float(counts @ x) / drawn
    found = float(counts @ x**2) / drawn - mean**2
    fourth = float(chances @ support.astype(np.float64) ** 4)
    # Two tails of values that are rare, each counted together.
    often = np.flatnonzero(chances * drawn >= EXPECTED)
    low, high = int(support[often[0]]), int(support[often[-1]])
    expected = np.concatenate(
        [[chances[support < low].sum()], chances[often], [chances[support > high].sum()]]
    )
    seen = np.concatenate(
        [[counts[x < low].sum()], counts[(x >= low) & (x <= high)], [counts[x > high].sum()]]
    )
    chi_square = float((((seen - drawn * expected) ** 2) / (drawn * expected)).sum())
    largest = int(np.abs(x[counts > 0]).max())
    return Found(
        cohort=cohort,
        coefficients=drawn,
        values=values,
        wrong=wrong,
        variance=found,
        expected_variance=variance,
        mean_deviations=mean / math.sqrt(variance / drawn),
        variance_deviations=(found - variance) / math.sqrt((fourth - variance**2) / drawn),
        chi_square=chi_square,
        degrees=expected.size - 1,
        p_value=chi_square_tail(chi_square, expected.size - 1),
        largest=largest,
        bound=bound,
    )


def chi_square_tail(x: float, degrees: int) -> float:
    """Probability that chi-square exceeds x, by Wilson's and Hilferty's cube root: to some 0.001."""
    spread = 2 / (9 * degrees)
    return math.erfc(((x / degrees) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


def table(found: Sequence[Found]) -> Table:
    """A row for each N."""
    out = Table(
        title="noise of sums",
        caption="deviations are in standard deviations of mean and variance; p of chi-square",
    )
    headings = ("N", "coefficients", "wrong sums", "variance", "stated", "mean off by")
    for heading in (*headings, "variance off by", "chi-square", "p", "largest", "bound"):
        out.add_column(heading, justify="right")
    for f in found:
        out.add_row(
            *(f"{f.cohort}", f"{f.coefficients:,}", f"{f.wrong}"),
            *(f"{f.variance:,.3f}", f"{f.expected_variance:,.3f}"),
            *(f"{f.mean_deviations:+.1f}", f"{f.variance_deviations:+.1f}"),
            *(f"{f.chi_square:.0f} / {f.degrees}", f"{f.p_value:.2f}"),
            *(f"{f.largest}", f"{f.bound}"),
        )
    return out


def command(
    coefficients: Annotated[int, typer.Option(help="Of each sender.")] = COEFFICIENTS,
    cohorts: Annotated[
        list[int] | None, typer.Option("--cohort", help="N; by default 2, 16, 100 and 1000.")
    ] = None,
    ring: Annotated[str, typer.Option(help="Preset of the ring.")] = DEFAULT_ESHE,
    threads: Annotated[int, typer.Option(help="Threads.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """Measure the noise of sums."""
    from flhe.sim.bench.table import progress

    try:
        found = []
        with progress(Console(stderr=True)) as advance:
            for cohort in cohorts or COHORTS:
                found.append(
                    noise(cohort, coefficients, ring=ring, threads=threads, progress=advance)
                )
        if json_file is not None:
            data = {"format": FORMAT, "version": VERSION, "machine": machine(), "ring": ring}
            rows = [asdict(f) for f in found]
            write_json(json_file, json.dumps({**data, "sigma": SIGMA, "found": rows}, indent=2))
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    console(json_file, 140).print(table(found))
    if any(f.wrong for f in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    app()
