"""Arrays as fields of a record: their bytes, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flhe.wire.fields import As


def array(dtype: DTypeLike) -> As:
    """A flat array of at least one number of a type; it is read into the machine's own byte order."""
    own = np.dtype(dtype)
    little = own.newbyteorder("<")

    def write(value: NDArray[Any]) -> bytes:
        return value.astype(little).tobytes()

    def read(raw: bytes) -> NDArray[Any]:
        if not raw:
            raise ValueError("no numbers")
        return np.frombuffer(raw, little).astype(own, copy=False)

    return As(write, read, f"{own.name} numbers")
