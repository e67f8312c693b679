"""Verdict: whether an opened sum is that of what its senders encrypted, before anything is made of it.

One verdict for all of it. Whether a scheme's own bounds do not hold, the number of contributions is
not that of the senders, or a tag does not match: the error is of one class, so a relay that alters a
sum learns that it is refused, which it knows, and not how far off it was. Which check failed is for
the member's own log.

Source: docs/protocol.md (Tags); `flhe.schemes.sum_mac`.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support, covered
from flhe.errors import AlteredError, ProtocolError, QuorumError
from flhe.schemes.base import Opener
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac

NAMES = ("first tag", "second tag")


def tagged(
    encoded: Plain, tags: SumMac | None, rank: int, bits: int, support: Support | None = None
) -> Plain:
    """An encoded vector with tags of the member of `rank` behind the extras, if there are any."""
    if tags is None:
        return encoded
    return tags.tagged(encoded, rank, bits, b"" if support is None else support.digest())


def open_verified(
    opener: Opener, tags: SumMac | None, bits: int, total: Sealed, values: int
) -> NDArray[Any]:
    """What a sum holds, without the tags: signed values, then extras.

    Parameters
    ----------
    opener : Opener
        For this sum.
    tags : SumMac or None
        Of its slot; None where its members have none.
    bits : int
        Bits of one value.
    total : Sealed
        The sum.
    values : int
        How many values are in it, before the extras.

    Raises
    ------
    AlteredError
        It is not the sum of what `total.senders` encrypted in this slot.
    """
    try:
        lanes: NDArray[Any] = opener.decrypt(total)
    except QuorumError:
        raise  # too little was released: that says nothing of the sum
    except ProtocolError as error:
        raise _altered(total, str(error)) from None
    if tags is None:
        return lanes
    coords = covered(total.supports) if total.supports else None
    whole = Plain(lanes[:values], lanes[values:], coords)
    bounds = [support.digest() for support in total.supports]
    plain, fits = tags.matching(whole, total.senders, bits, bounds)
    if not all(fits):
        what = [name for name, right in zip(NAMES, fits, strict=True) if not right]
        if not _counts(plain, len(total.senders), bits):
            what.insert(0, "count of contributions")
        raise _altered(total, "what does not match: " + ", ".join(what))
    return lanes[: values + plain.extras.size]


def _counts(plain: Plain, senders: int, bits: int) -> bool:
    """Whether a sum's count slot says as many contributions as it has senders."""
    quantize = Quantize(bits)
    digits = plain.extras[COUNT * quantize.limbs : (COUNT + 1) * quantize.limbs]
    return sum(int(d) << ((bits - 1) * k) for k, d in enumerate(digits)) == senders


def _altered(total: Sealed, what: str) -> AlteredError:
    return AlteredError(
        f"the sum of round {total.slot.round} is not that of what its {len(total.senders)} senders "
        f"encrypted ({what}): a contribution was left out, counted twice, changed or brought in on the "
        "way; the round is refused"
    )
