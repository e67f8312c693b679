"""What the papers say in numbers: published.toml, read as rows."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar

T = TypeVar("T")
_SIZE = re.compile(r"([0-9.]+) ([KMG])B")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def rows(paper: str, table: str, of: Callable[..., T]) -> tuple[T, ...]:
    """One `of` for each row of a paper's table; sizes in bytes."""
    return tuple(of(*map(_number, row)) for row in _read()[paper][table])


@functools.cache
def _read() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _number(cell: Any) -> Any:
    if isinstance(cell, list):
        return tuple(cell)
    size = _SIZE.fullmatch(cell) if isinstance(cell, str) else None
    return float(size[1]) * _UNITS[size[2]] if size else cell
