"""What the papers say in numbers: published.toml, read as rows."""

from __future__ import annotations

import functools
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

from flhe_lab.advise.toml_files import load_toml

_SIZE = re.compile(r"([0-9.]+) ([KMG])B")
MB = 1 << 20
"""The papers' megabyte, but for FLASHE's."""

_UNITS = {"K": 1 << 10, "M": MB, "G": 1 << 30}


def rows(paper: str, table: str) -> tuple[Any, ...]:
    """A named tuple for each row of a paper's table; sizes in bytes, None where a row ends early."""
    columns, *lines = _read()[paper][table]
    of = namedtuple("of", columns, defaults=[None] * len(columns))  # type: ignore[misc]
    return tuple(of(*map(_number, line)) for line in lines)


@functools.cache
def _read() -> dict[str, Any]:
    return load_toml(Path(__file__).with_name("published.toml"))


def _number(cell: Any) -> Any:
    if isinstance(cell, list):
        return tuple(cell)
    size = _SIZE.fullmatch(cell) if isinstance(cell, str) else None
    return float(size[1]) * _UNITS[size[2]] if size else cell
