"""`flhe bench paillier`: what each trick brings, a ciphertext at a time, in one run.

Encryption is c = (1 + m n) u mod n^2 with a random n-th residue u. From the print to what flhe does:

- *textbook*: u = r^n mod n^2, by Python's `pow` and by GMP (which is what phe does);
- *CRT*: u modulo p^2 and modulo q^2, for those who know p and q;
- *DJN*: u = h_s^a with a of half the length of n, h_s = h^n fixed;
- *tables*: powers of the fixed h_s, made before, so that only products are left, with entries of half
  length; then in eight lanes of AVX-512 IFMA, where the processor has them;
- *verified*: `flhe.schemes.batchcrypt.residues.draw`, which makes tables and lets no fault out; then beside other
  work, on threads where lanes let go of Python's lock, else on processes;
- *drawn ahead*: what is left of `PaillierSealer.encrypt` when that is done, batching included.

Decryption is one power for each prime; *textbook* is one modulo n^2. All take turns within each
repeat, on as many processors as they have threads; the first turn is not counted; all results are
checked. The more ciphertexts share tables, the larger they are. With FLHE_IFMA=0 in the
environment nothing is done in lanes, as on other processors.

Source: Paillier (EUROCRYPT 1999); Damgård, Jurik, Nielsen (2010); Brickell, Gordon, McCurley, Wilson
(EUROCRYPT 1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from flhe_lab.bench.host import machine
from flhe_lab.bench.paillier_ways import YARDSTICK, Group, Tricks
from flhe_lab.bench.phe import KEY_BITS
from flhe_lab.bench.turns import Progress, Times
from flhe_lab.bench.turns import measure as measured

COUNT = 2048
"""Ciphertexts over which tables are shared: about 300,000 values."""

REPEATS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds a ciphertext."""

    name: str
    group: Group
    count: int
    threads: int
    key_bits: int
    seconds: Times


def measure(
    key_bits: int = KEY_BITS,
    count: int = COUNT,
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> list[Row]:
    """Time all of them, in turns.

    Parameters
    ----------
    key_bits : int
        |n|: 2048, 3072 or 4096.
    count : int
        Ciphertexts that share tables.
    repeats : int
        Turns that count.
    progress : callable, optional
        Told what is running.

    Raises
    ------
    ConfigError
        No repeats, phe or gmpy2 not installed, too few processors.
    FlheError
        A wrong result.
    """
    tricks = Tricks(key_bits, count)
    ways = tricks.all()
    found = measured([tricks.contender(way) for way in ways], repeats, progress)
    return [
        Row(way.name, way.group, way.count, way.threads, key_bits, each.times[way.group])
        for way, each in zip(ways, found.values(), strict=True)
    ]


def ratios(rows: Sequence[Row]) -> dict[tuple[Group, str], float]:
    """How many times faster than phe each row is, by minima."""
    phe = {row.group: row.seconds.min for row in rows if row.name == YARDSTICK}
    return {(row.group, row.name): phe[row.group] / row.seconds.min for row in rows}


def shared(rows: Sequence[Row]) -> int:
    """Ciphertexts that share tables."""
    return max(row.count for row in rows if row.group == "encrypt")


def to_data(rows: Sequence[Row]) -> dict[str, Any]:
    """What was measured and how, as JSON values."""
    by = ratios(rows)
    return {
        "machine": machine(),
        "key_bits": rows[0].key_bits,
        "count": shared(rows),
        "unit": "seconds a ciphertext; times_phe: minimum of phe's to minimum of this",
        "rows": [{**asdict(row), "times_phe": by[row.group, row.name]} for row in rows],
    }


def table(rows: Sequence[Row]) -> Table:
    """Milliseconds a ciphertext, and how many times faster than phe."""
    by = ratios(rows)
    out = Table(
        title=f"Paillier, {rows[0].key_bits} bits, ms a ciphertext; tables shared by "
        f"{shared(rows):,}",
        caption=f"{YARDSTICK}: python-paillier with gmpy2, raw_encrypt, raw_decrypt; ratios of minima",
    )
    for heading in ("", "min", "median", "than phe"):
        out.add_column(heading, justify="right" if heading else "left")
    for group in ("encrypt", "decrypt"):
        chosen = [row for row in rows if row.group == group]
        out.add_row(f"[bold]{group}[/bold]")
        for row in chosen:
            out.add_row(
                row.name,
                f"{1e3 * row.seconds.min:.3f}",
                f"{1e3 * row.seconds.median:.3f}",
                f"{by[row.group, row.name]:.2f}x",
                end_section=row is chosen[-1],
            )
    return out
