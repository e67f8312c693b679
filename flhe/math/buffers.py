"""Large buffers that do not fault page by page."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE = 1 << 22
"""NumPy asks the kernel for huge pages from 4 MiB on."""

SMALL = 1 << 20
"""Below 1 MiB the heap serves, and reuses, what was freed."""


def empty(length: int, dtype: Any) -> NDArray[Any]:
    """Uninitialised array, shape (length,).

    Between 1 and 4 MiB it is the front of a 4 MiB one: address space only, since pages are given when
    written, but in huge pages. A 3 MB ciphertext would otherwise cost 730 page faults, which take
    longer than encrypting it.
    """
    nbytes = length * np.dtype(dtype).itemsize
    if SMALL <= nbytes < HUGE:
        return np.empty(HUGE, np.uint8)[:nbytes].view(dtype)
    return np.empty(length, dtype)
