"""`flhe bench`: encryption, addition and decryption of one update, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flhe_lab.bench.contender import PHASES, Contender, Setting
from flhe_lab.bench.host import machine, pinned
from flhe_lab.bench.limits import limits
from flhe_lab.bench.schemes import MATRIX, NARROW, esafl, sash, sash_mask, scheme_named
from flhe_lab.bench.turns import Measured, Progress, measure

Rows = Mapping[str, Measured]


def bench(
    schemes: Sequence[str],
    setting: Setting,
    *,
    repeats: int = 20,
    with_peers: bool = False,
    progress: Progress | None = None,
) -> Rows:
    """Time everything, by name; check every mean.

    Raises
    ------
    ConfigError
        An unknown scheme, or a setting that cannot be measured.
    FlheError
        A mean that is not the mean.
    """
    makers = [scheme_named(name) for name in schemes]
    with pinned(setting.threads):
        updates = setting.updates()
        contenders: list[Contender] = [make(setting, updates) for make in makers]
        if "sash" in schemes:
            contenders += [sash_mask(setting), sash(setting, updates, MATRIX)]
            contenders.append(sash_mask(setting, MATRIX))
        if "esafl" in schemes:
            contenders.append(esafl(setting, updates, NARROW))
        contenders += limits(setting)
        if with_peers:
            from flhe_lab.bench.peers import peers

            contenders += peers(setting, updates)
        return measure(contenders, repeats, progress)


def to_data(rows: Rows, setting: Setting) -> dict[str, Any]:
    """Machine and rows, as JSON values; null for what a row has not."""
    return {"machine": machine(), "rows": [_row(row, setting) for row in rows.values()]}


def _row(row: Measured, setting: Setting) -> dict[str, Any]:
    made, times = row.contender, {phase: row.times.get(phase) for phase in PHASES}
    size = made.upload_bytes
    return {
        "name": made.name,
        "kind": made.kind,
        **asdict(setting),
        **{f"{phase}_s": each and asdict(each) for phase, each in times.items()},
        "upload_bytes": size,
        "bytes_per_value": None if size is None else size / setting.values,
        "max_error": row.error,
        "note": made.note,
    }
