"""What `esafl_tables` prints: Tables 3 and 4 of ESAFL's paper, each beside what was found."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from flhe.sim.esafl_tables import COHORT, PAPER_ERRORS, Model, Results, Row

TABLE_3_BITS = 16


def tables(found: Results) -> list[Table]:
    """Ciphertexts and traffic at Table 3's precision and at Table 4's, then errors."""
    bits = sorted({row.bits for rows in found.values() for row in rows})
    return [_sizes(found, each) for each in bits] + [_errors(found, bits)]


def _sizes(found: Results, bits: int) -> Table:
    out = Table(
        title=f"ciphertexts, and MB up and down: {bits} bits a value, {COHORT} clients (Table 3)",
        caption="MB of 2^20 bytes; the paper's FCN, packed, is one way only",
    )
    _columns(out, found)

    def paper(packed: bool) -> Callable[[Model], str]:
        return lambda m: f"{m.ciphertexts[packed]:,}\n{m.traffic[packed]:,.2f} MB"

    out.add_row("plain", "", *(f"{m.plain_traffic:,.2f} MB" for m in found))
    if bits == TABLE_3_BITS:
        for packed in (False, True):
            out.add_row("the paper's table", _packed(packed), *map(paper(packed), found))
        out.add_section()
    for name, packed, rows in _by_encoding(found, bits):
        cells = (f"{row.ciphertexts:,}\n{row.traffic_mb:,.2f} MB" for row in rows)
        out.add_row(name, _packed(packed), *cells)
    return out


def _errors(found: Results, precisions: list[int]) -> Table:
    out = Table(
        title="mean absolute error of the sum; of the mean (Table 4)",
        caption="measured: encoded, encrypted, added, decrypted; the paper's are magnitudes",
    )
    _columns(out, found)
    for packed in (False, True):
        cells = (f"{PAPER_ERRORS[packed]:.0e}" for _ in found)
        out.add_row("the paper's table, 32 bits", _packed(packed), *cells)
    for bits in precisions:
        out.add_section()
        for name, packed, rows in _by_encoding(found, bits):
            if all(row.error is not None for row in rows):
                cells = (f"{row.error:.1e}; {(row.error or 0) / COHORT:.1e}" for row in rows)
                out.add_row(f"{name}, {bits} bits", _packed(packed), *cells)
    return out


def _columns(out: Table, found: Results) -> None:
    out.add_column("")
    out.add_column("")
    for model in found:
        out.add_column(f"{model.name}\n{model.values:,}", justify="right")


def _by_encoding(found: Results, bits: int) -> list[tuple[str, bool, list[Row]]]:
    columns = [[row for row in rows if row.bits == bits] for rows in found.values()]
    return [(rows[0].encoding, rows[0].packed, list(rows)) for rows in zip(*columns, strict=True)]


def _packed(packed: bool) -> str:
    return "packed" if packed else "not packed"
