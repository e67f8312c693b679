"""The machine that measures: what it is, on how many processors, and how quietly."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flhe.errors import ConfigError

UNITS = {"AVX-512": "avx512f", "VAES": "vaes", "NEON": "neon"}
"""Vector units by LLVM's names."""


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process on `threads` processors, and libraries to as many threads."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if threads > len(before):
        raise ConfigError(f"--threads {threads}: this process may use {len(before)} processors")
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def quiet(*names: str, level: int = logging.ERROR) -> Iterator[None]:
    """Keep Flower's notes of every stage off the terminal, or those of `names`; errors still show."""
    before = {logger: logger.level for logger in map(logging.getLogger, names or ("flwr",))}
    for logger in before:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in before.items():
            logger.setLevel(was)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have torch compute on so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, Any]:
    """What it ran on."""
    import numpy

    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": version("numba"),
        "cryptography": version("cryptography"),
        "flhe": version("flhe"),
    }


def _processor() -> str:
    """Name it, with the vector units that our times depend on: makers sell several under one name."""
    from flhe.math.aes_kernels import features

    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    units = [unit for unit, flag in UNITS.items() if flag in features()]
    return f"{name} ({', '.join(units)})" if units else name
