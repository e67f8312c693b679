"""`flhe bench`: encryption, addition and decryption of one update, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flhe.errors import ConfigError
from flhe_lab.bench.contender import Contender, Kind, Setting
from flhe_lab.bench.host import machine, pinned
from flhe_lab.bench.limits import limits
from flhe_lab.bench.schemes import (
    MATRIX,
    NARROW,
    esafl,
    fedml,
    fedml_clear,
    sash,
    sash_mask,
    scheme_named,
)
from flhe_lab.bench.turns import Measured, Progress, Times, measure


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's result; None where it has none."""

    name: str
    kind: Kind
    values: int
    cohort: int
    dropouts: int
    threads: int
    encrypt_s: Times | None
    add_s: Times | None
    decrypt_s: Times | None
    upload_bytes: int | None
    bytes_per_value: float | None
    max_error: float | None
    note: str | None

    @classmethod
    def of(cls, found: Measured, setting: Setting) -> Row:
        """The row of what was measured."""
        contender, size = found.contender, found.contender.upload_bytes
        return cls(
            contender.name,
            contender.kind,
            setting.values,
            setting.cohort,
            setting.dropouts,
            setting.threads,
            found.times.get("encrypt"),
            found.times.get("add"),
            found.times.get("decrypt"),
            size,
            None if size is None else size / setting.values,
            found.error,
            contender.note,
        )


def bench(
    schemes: Sequence[str],
    setting: Setting,
    *,
    repeats: int = 20,
    with_peers: bool = False,
    top_k: float | None = None,
    select: float | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Time everything; check every mean.

    With `top_k`, FLASHE of so large a share of each update is a row of its own; with `select`, FedML-HE
    with so large a share encrypted, and what it leaves in clear.

    Raises
    ------
    ConfigError
        An unknown scheme, or a setting that cannot be measured.
    FlheError
        A mean that is not the mean.
    """
    if top_k is not None and not 0 < top_k < 1:
        raise ConfigError(f"--top-k {top_k}: must be a share between 0 and 1")
    if select is not None and not 0 < select < 1:
        raise ConfigError(f"--select {select}: must be a share between 0 and 1")
    if select is not None and "fedml-he" not in schemes:
        raise ConfigError("--select is timed with scheme fedml-he: name that scheme")
    if repeats < 1:
        raise ConfigError(f"--repeats {repeats}: must be at least 1")
    makers = [scheme_named(name) for name in schemes]
    with pinned(setting.threads):
        updates = setting.updates()
        contenders: list[Contender] = [make(setting, updates) for make in makers]
        if "sash" in schemes:
            contenders += [sash_mask(setting), sash(setting, updates, MATRIX)]
            contenders.append(sash_mask(setting, MATRIX))
        if "esafl" in schemes:
            contenders.append(esafl(setting, updates, NARROW))
        if select is not None:
            contenders.append(fedml(setting, updates, select))
            contenders.append(fedml_clear(setting, updates, select))
        if top_k is not None:
            from flhe_lab.bench.sparse import sparse

            contenders.append(sparse(setting, updates, top_k))
        contenders += limits(setting)
        if with_peers:
            from flhe_lab.bench.peers import peers

            contenders += peers(setting, updates)
        found = measure(contenders, repeats, progress)
    return [Row.of(each, setting) for each in found.values()]


def to_data(rows: Sequence[Row]) -> dict[str, Any]:
    """Machine and rows, as JSON values."""
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}
