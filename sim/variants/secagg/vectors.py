"""SecAgg: pairwise masks on the vectors themselves; the server opens the sum.

Vectors are modulo 2**b, b = bits + ceil(log2 cohort), at most 32: a sum of `cohort` values of `bits`
bits, sign included, never wraps, and b bits a value travel. Masks are lanes of 32 bits.

Keys, shares and the set of senders are steps of `pairwise`, and who masks with whom is its graph:
complete for SecAgg, regular for SecAgg+. Here is what lies between: values to lanes, lanes to the
sum. A client makes as many streams as it has neighbours, and the server one for each client, and for
each that dropped out one for each neighbour: for what that costs see `flhe_lab.bench.secure_sums`.

Source: Bonawitz et al., CCS 2017, Fig. 4; Bell et al., CCS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import Packing
from flhe.errors import ConfigError
from flhe.math.buffers import empty
from flhe_lab.variants.secagg.pairwise import State, mask
from flhe_lab.variants.secagg.plan import Plan
from flhe_lab.variants.secagg.server import unmask_sum


def packing_of(cohort: int, bits: int) -> Packing:
    """How values of `bits` bits, sign included, of up to `cohort` clients lie in a ciphertext.

    Raises ConfigError: more bits than a lane has.
    """
    lane = bits + (cohort - 1).bit_length()
    if bits < 2 or lane > 32:
        raise ConfigError(
            f"SecAgg of {cohort} clients: bits={bits} must be 2 to {32 - lane + bits}"
        )
    return Packing(lane)


def seal(
    shared: State, boxes: Mapping[int, bytes], values: NDArray[np.int32], packing: Packing
) -> tuple[State, NDArray[np.uint8]]:
    """Mask values, shape (plan.length,), and pack them; with the state for `pairwise.consist`."""
    masked, lanes = mask(shared, boxes, np.zeros(values.size, np.uint32))
    data = empty(packing.nbytes(values.size), np.uint8)
    return masked, packing.pack(values.astype(packing.signed), lanes.view(np.uint32), data)


def opened(
    plan: Plan, total: NDArray[np.uint8], packing: Packing, **known: Any
) -> NDArray[np.int32]:
    """The sum of packed vectors, shape (plan.length,); `known`, and errors, as of `unmask_sum`."""
    zeros, lanes = np.zeros(plan.length, np.uint32), empty(plan.length, np.int32)
    packed = packing.unpack(total, zeros, lanes).view(np.uint32)
    signed: NDArray[np.int32] = packing.signed_of(unmask_sum(plan, packed, **known))
    return signed
