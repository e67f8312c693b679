"""Blockwise: an optimizer's rule over long float32 vectors, with the same bits on every machine.

Every client applies the rule to the same mean and must come to the same model, for members compare
keyed digests of theirs. So a rule uses +, -, *, /, sqrt and comparisons only, one element at a time,
which IEEE 754 rounds in one way alone; powers are repeated products. A block is computed in float64 and
rounded to float32 once. Numbers too small to be normal become zero, because some programs make the
processor flush them to zero and others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError

Vector = NDArray[np.float32]
Wide = NDArray[np.float64]
"""What a block is computed in: a float32 moment is then rounded once a step."""

Rule = Callable[[Wide, Mapping[str, Wide]], tuple[Wide, Mapping[str, Wide]]]
"""(the mean, the moments) -> (the change of the model, the next moments), a block of each."""

BLOCK = 1 << 14
"""Values at a time: temporaries then stay in the processor's cache, and few."""

TINY = float(np.finfo(np.float32).tiny)
HUGE = float(np.finfo(np.float32).max)
"""Smallest and largest normal float32."""


def run(
    rule: Rule, mean: Vector, moments: Mapping[str, Vector], out: Vector | None
) -> tuple[Vector, dict[str, Vector]]:
    """Apply `rule` block by block; it must treat elements alike, for blocks may fall anywhere.

    For the rest see `BaseOptimizer.step`. What is too large for float32 is its largest number.
    """
    change: Vector = np.empty(mean.size, np.float32) if out is None else out
    after: dict[str, Vector] = {name: np.empty(mean.size, np.float32) for name in moments}
    for at in range(0, mean.size, BLOCK):
        part = slice(at, at + BLOCK)
        block = _normal(mean[part].astype(np.float64))
        step, wide = rule(block, {n: moments[n][part].astype(np.float64) for n in after})
        for name in after:
            _store(wide[name], after[name][part])
        _store(step, change[part])
    return change, after


def check(
    what: str,
    names: Sequence[str],
    mean: Vector,
    moments: Mapping[str, Vector],
    out: Vector | None,
) -> None:
    """Refuse what an optimizer with moments of these names cannot take; ProtocolError."""
    if set(moments) != set(names):
        raise ProtocolError(
            f"{what} keeps {', '.join(names) or 'no moments'}; the model comes with "
            f"{', '.join(sorted(moments)) or 'none'}: it was trained with another"
        )
    vectors = [mean, *moments.values(), *([] if out is None else [out])]
    if any(v.dtype != np.float32 or v.shape != (mean.size,) for v in vectors):
        raise ProtocolError(f"{what}: mean and moments must be float32 vectors of one length")


def power(base: float, exponent: int) -> float:
    """`base` to a power of 0 or more by squaring: libraries' pow() differ in the last bit."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _normal(block: Wide) -> Wide:
    """`block` with everything below float32's normal range set to zero, in place."""
    block[np.abs(block) < TINY] = 0
    return block


def _store(block: Wide, out: Vector) -> None:
    """Round a block to float32; what is too large for it becomes its largest number."""
    out[...] = np.clip(_normal(block), -HUGE, HUGE)
