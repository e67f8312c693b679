"""What each trick brings to Paillier, a ciphertext at a time, on one machine in one run.

    python -m flhe.sim.paillier_tricks [--key-bits 3072] [--json FILE]

Encryption is c = (1 + m n) u mod n^2 with a random n-th residue u. From the print to what flhe does:

- *textbook*: u = r^n mod n^2, by Python's `pow` and by GMP (which is what phe does);
- *CRT*: u modulo p^2 and modulo q^2, for those who know p and q;
- *DJN*: u = h_s^a with a of half the length of n, h_s = h^n fixed;
- *tables*: powers of the fixed h_s, made before, so that only products are left; then with entries of
  half length; then in eight lanes of AVX-512 IFMA, where the processor has them;
- *verified*: `flhe.math.residues.draw`, which makes tables and lets no fault out; then beside other
  work, on threads where lanes let go of Python's lock, else on processes;
- *drawn ahead*: what is left of `PaillierSealer.encrypt` when that is done, batching included.

Decryption is one power for each prime; *textbook* is one modulo n^2. All take turns within each
repeat, on as many processors as they have threads; the first turn is not counted; all results are
checked. The more ciphertexts share tables, the larger they are: --count. With FLHE_IFMA=0 in the
environment nothing is done in lanes, as on other processors.

Source: Paillier (EUROCRYPT 1999); Damgård, Jurik, Nielsen (2010); Brickell, Gordon, McCurley, Wilson
(EUROCRYPT 1992).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flhe.errors import ConfigError, FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.sim.bench import Progress, Times, machine, pinned
from flhe.sim.paillier_ways import YARDSTICK, Group, Tricks
from flhe.sim.phe_peer import KEY_BITS

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
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")
    tricks = Tricks(key_bits, count)
    ways = tricks.all()
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(repeats + 1):
        for way, seconds in zip(ways, times, strict=True):
            if progress is not None:
                progress(turn, repeats + 1, f"{way.group}: {way.name}")
            if way.before is not None:
                way.before()
            with pinned(way.threads):
                began = time.perf_counter()
                found = way.work()
                ended = time.perf_counter()
            if turn == 0:
                tricks.check(way, found)
            else:
                seconds.append((ended - began) / way.count)
    rows = []
    for way, seconds in zip(ways, times, strict=True):
        taken = Times.of(seconds)
        assert taken is not None
        rows.append(Row(way.name, way.group, way.count, way.threads, taken))
    return rows


def ratios(rows: Sequence[Row]) -> dict[tuple[Group, str], float]:
    """How many times faster than phe each row is, by minima."""
    phe = {row.group: row.seconds.min for row in rows if row.name == YARDSTICK}
    return {(row.group, row.name): phe[row.group] / row.seconds.min for row in rows}


def to_data(rows: Sequence[Row], key_bits: int, count: int) -> dict[str, Any]:
    """What was measured and how, as JSON values."""
    by = ratios(rows)
    return {
        "machine": machine(),
        "key_bits": key_bits,
        "count": count,
        "unit": "seconds a ciphertext; times_phe: minimum of phe's to minimum of this",
        "rows": [{**asdict(row), "times_phe": by[row.group, row.name]} for row in rows],
    }


def table(rows: Sequence[Row], key_bits: int, count: int) -> Table:
    """Milliseconds a ciphertext, and how many times faster than phe."""
    by = ratios(rows)
    out = Table(
        title=f"Paillier, {key_bits} bits, ms a ciphertext; tables shared by {count:,}",
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


def main(
    key_bits: Annotated[int, typer.Option(help="Length of the modulus: 2048, 3072 or 4096.")] = (
        KEY_BITS
    ),
    count: Annotated[int, typer.Option(help="Ciphertexts that share tables.")] = COUNT,
    repeats: Annotated[int, typer.Option(help="Turns that count.")] = REPEATS,
    json_file: JsonFile = None,
) -> None:
    """Measure what each trick brings to Paillier."""
    from flhe.sim.bench_table import progress

    try:
        with progress(Console(stderr=True)) as advance:
            rows = measure(key_bits, count, repeats=repeats, progress=advance)
        if json_file is not None:
            write_json(json_file, json.dumps(to_data(rows, key_bits, count), indent=2))
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    console(json_file, 100).print(table(rows, key_bits, count))


if __name__ == "__main__":
    typer.run(main)
