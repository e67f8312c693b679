"""`flhe bench paillier`: what each trick brings, a ciphertext at a time, in one run.

Encryption is c = (1 + m n) u mod n^2 with a random n-th residue u. From the print to what flhe does:

- *textbook*: u = r^n mod n^2, by Python's `pow` and by GMP (which is what phe does);
- *CRT*: u modulo p^2 and modulo q^2, for those who know p and q;
- *DJN*: u = h_s^a with a of half the length of n, h_s = h^n fixed;
- *tables*: powers of the fixed h_s, made before, so that only products are left, with entries of half
  length; then in eight lanes of AVX-512 IFMA, where the processor has them;
- *verified*: `flhe.schemes.batchcrypt.residues.draw`, which makes tables and lets no fault out;
  then beside other work, on threads where lanes let go of Python's lock, else on processes;
- *drawn ahead*: what is left of `PaillierSealer.encrypt` when that is done, batching included.

Decryption is one power for each prime; *textbook* is one modulo n^2. All take turns within each
repeat, on as many processors as they have threads; the first turn is not counted; all results are
checked. The more ciphertexts share tables, the larger they are. With FLHE_IFMA=0 in the
environment nothing is done in lanes, as on other processors.

Source: Paillier (EUROCRYPT 1999); Damgård, Jurik, Nielsen (2010); Brickell, Gordon, McCurley, Wilson
(EUROCRYPT 1992).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from flhe_lab.bench.host import machine
from flhe_lab.bench.paillier_ways import YARDSTICK, Tricks
from flhe_lab.bench.phe import KEY_BITS
from flhe_lab.bench.turns import Measured, Progress
from flhe_lab.bench.turns import measure as in_turns

COUNT = 2048
"""Ciphertexts over which tables are shared: about 300,000 values."""

REPEATS = 7
Rows = dict[tuple[str, str], Measured]
"""(encrypt or decrypt, name) -> what it took."""


def measure(
    key_bits: int = KEY_BITS,
    count: int = COUNT,
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> Rows:
    """Time all of them, in turns; a modulus of `key_bits` bits, `count` ciphertexts that share tables.

    Raises
    ------
    ConfigError
        No repeats, phe or gmpy2 not installed, too few processors.
    FlheError
        A wrong result.
    """
    found = in_turns(Tricks(key_bits, count).all(), repeats, progress)
    return {key_of(each): each for each in found.values()}


def key_of(found: Measured) -> tuple[str, str]:
    """What it does, and its name."""
    group, _, name = found.contender.name.partition(": ")
    return group, name


def times_phe(rows: Rows, key: tuple[str, str]) -> float:
    """How many times faster than phe a row is, by minima."""
    group, _ = key
    return rows[group, YARDSTICK].times[group].min / rows[key].times[group].min


def to_data(rows: Rows) -> dict[str, Any]:
    """What was measured and how, as JSON values."""
    return {
        "machine": machine(),
        "unit": "seconds a ciphertext; times_phe: minimum of phe's to minimum of this",
        "rows": [
            {
                "name": key[1],
                "group": key[0],
                "count": round(1 / each.contender.projection),
                "threads": each.contender.threads,
                "seconds": asdict(each.times[key[0]]),
                "times_phe": times_phe(rows, key),
            }
            for key, each in rows.items()
        ],
    }


def table(rows: Rows, key_bits: int = KEY_BITS) -> Table:
    """Milliseconds a ciphertext, and how many times faster than phe."""
    shared = max(round(1 / each.contender.projection) for each in rows.values())
    out = Table(
        title=f"Paillier, {key_bits} bits, ms a ciphertext; tables shared by {shared:,}",
        caption=f"{YARDSTICK}: python-paillier with gmpy2, raw_encrypt, raw_decrypt; ratios of minima",
    )
    for heading in ("", "min", "median", "than phe"):
        out.add_column(heading, justify="right" if heading else "left")
    for group in ("encrypt", "decrypt"):
        out.add_section()
        out.add_row(f"[bold]{group}[/bold]")
        for key in (key for key in rows if key[0] == group):
            seconds = rows[key].times[group]
            shown = (f"{1e3 * each:.3f}" for each in (seconds.min, seconds.median))
            out.add_row(key[1], *shown, f"{times_phe(rows, key):.2f}x")
    return out
