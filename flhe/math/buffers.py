"""Large buffers: some that do not fault page by page, and all of them given back when freed."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE = 1 << 22
"""NumPy asks the kernel for huge pages from 4 MiB on."""

SMALL = 1 << 20
"""Below 1 MiB the heap serves, and reuses, what was freed."""


def empty(length: int, dtype: Any) -> NDArray[Any]:
    """Uninitialised array, shape (length,).

    Between 1 and 4 MiB it is the front of a 4 MiB one, which comes in huge pages: a 3 MB ciphertext
    would otherwise cost 730 page faults, which take longer than encrypting it.
    """
    nbytes = length * np.dtype(dtype).itemsize
    if SMALL <= nbytes < HUGE:
        return np.empty(HUGE, np.uint8)[:nbytes].view(dtype)
    return np.empty(length, dtype)


_M_MMAP_THRESHOLD = -3
"""Of glibc's mallopt: from this size on, a block is a mapping of its own."""


@functools.cache
def give_back_large() -> bool:
    """Have blocks of 1 MiB and more go back to the system when they are freed; whether that worked.

    Left to itself, glibc keeps blocks of up to 32 MiB for later, in a heap for each thread. Flower
    unpacks messages in 5 MiB blocks, on new threads: after a few of them a process holds several times
    what it uses. For a server's process only: training would wait for fresh pages.
    """
    return _of_libc("mallopt", _M_MMAP_THRESHOLD, SMALL)


def give_back() -> None:
    """Give what is free back to the system, once; what comes after is allocated as before."""
    _of_libc("malloc_trim", 0)


def _of_libc(name: str, *arguments: int) -> bool:
    try:
        return bool(getattr(ctypes.CDLL(None), name)(*arguments))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
