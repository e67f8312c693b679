"""Large buffers: fast allocation by huge pages, and return of freed memory to the system."""

from __future__ import annotations

import ctypes
import functools
import gc
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE = 1 << 22
"""Size from which NumPy asks the kernel for huge pages, 4 MiB."""

SMALL = 1 << 20
"""Size below which the heap reuses freed blocks, 1 MiB."""

FEW = 1 << 16
"""Size below which an array stays in memory, 64 KiB: the system reads as much at a time."""

LARGE = 1 << 26
"""Size from which freed memory is given back, 64 MiB."""


def empty(length: int, dtype: Any) -> NDArray[Any]:
    """Return an uninitialised array, shape (length,).

    Between 1 and 4 MiB it is the front of a 4 MiB one, which comes in huge pages. Otherwise a 3 MB
    ciphertext would cost 730 page faults, which take longer than encrypting it.
    """
    nbytes = length * np.dtype(dtype).itemsize
    if SMALL <= nbytes < HUGE:
        return np.empty(HUGE, np.uint8)[:nbytes].view(dtype)
    return np.empty(length, dtype)


def fixed(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view, for arguments of kernels that may be read-only.

    numba compiles a kernel once for arrays that are, and once more for arrays that are not.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def let_go(array: NDArray[Any]) -> None:
    """Take an array over a mapped file out of memory, if it is one; its next use reads it again.

    So a model on disk takes memory only array by array.
    """
    held: Any = array
    while isinstance(held, np.ndarray | memoryview):
        held = held.obj if isinstance(held, memoryview) else held.base
    if not (isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED")):
        return
    whole = np.frombuffer(held, np.uint8)
    # What was written to a mapping would be lost.
    if whole.flags.writeable or not array.flags.c_contiguous or array.nbytes < FEW:
        return
    start = array.ctypes.data - whole.ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    held.madvise(mmap.MADV_DONTNEED, first, start + array.nbytes - first)


_M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: from this size on, a block is a mapping of its own."""


@functools.cache
def give_back_large() -> bool:
    """Make glibc return freed blocks of 1 MiB and more to the system; return whether it worked.

    By default, glibc keeps blocks of up to 32 MiB for reuse, in a heap for each thread. Flower
    unpacks messages in 5 MiB blocks, on new threads: after a few of them a process holds several
    times what it uses. Call it in a server's process only: training would wait for fresh pages.
    """
    return _of_libc("mallopt", _M_MMAP_THRESHOLD, SMALL)


def give_back(dropped: int) -> None:
    """Return free memory to the system, once, if `dropped` bytes are LARGE or more.

    Garbage is collected first: views of Flower's records refer to themselves, so that all arrays of
    a message stay until a collection. After that a program waits for fresh pages: with a small
    model it would wait longer than anything else takes.
    """
    if dropped >= LARGE:
        gc.collect()
        _of_libc("malloc_trim", 0)


def _of_libc(name: str, *arguments: int) -> bool:
    try:
        return bool(getattr(ctypes.CDLL(None), name)(*arguments))
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
