"""Files of a state directory and of a server: a bad disk, or somebody who got at it, wrote them.

What is taken encodes to the same bytes, so nothing is lost or made up on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.coding.support import Support
from flhe.schemes.fedml_he.keys import CkksPublic, CkksSecret
from flhe.training.draft import MAGIC as DRAFT
from flhe.training.draft import Draft
from flhe.training.model import MAGIC as MODEL
from flhe.training.model import Model
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.plain import LAYOUT
from tests.fuzz.signed import CKKS, pair

# --- models ---


def arrays() -> dict[str, Any]:
    return {
        "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "b": np.array(b"\x80\x3f", "V2"),
        "n": np.array([3, -4], np.int64),
    }


def _joined(chunks: Any) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


def models() -> list[Model]:
    first = Model.initial(arrays())
    lane = np.linspace(0, 1, LAYOUT.floats, dtype=np.float32)
    memory = {"norms": np.array([0.5, 0.25])}
    mask = Support.of(np.array([0, 5, 12], np.uint32), LAYOUT.floats)
    later = first.after(3, bytes(32), first.masters, {"m": lane, "v": lane}, memory)
    return [first, later.masked(4, bytes([1]) * 32, mask)]


def drafts() -> list[Draft]:
    values, extras = np.array([0.5, -1.5], np.float32), np.array([7, -(2**40)], np.int64)
    residual, coords = np.zeros(5, np.float32), np.array([1, 4], np.uint32)
    dense_one = Draft(3, bytes(32), values, extras, base=bytes(32))
    return [dense_one, Draft(4, bytes([1]) * 32, values, extras, coords, residual)]


def _context() -> list[bytes]:
    return [pair(0, CKKS)[0].scheme_public]


def _seal_context(data: bytes) -> None:
    CKKS.sizes.seal.check_context(data)


def entries() -> Sequence[Decoder]:
    """All of them."""
    ckks = pair(0, CKKS)[0]
    return (
        Decoder(
            "model",
            lambda: [_joined(m.chunks()) for m in models()],
            Model.from_bytes,
            lambda m: _joined(m.chunks()),
            head=len(MODEL),
            covers=("flhe.training.model.Model.from_bytes",),
        ),
        Decoder(
            "draft",
            lambda: [_joined(d.chunks()) for d in drafts()],
            Draft.from_bytes,
            lambda d: _joined(d.chunks()),
            head=len(DRAFT),
            covers=("flhe.training.draft.Draft.from_bytes",),
        ),
        Decoder(
            "secret key of CKKS",
            lambda: [ckks.scheme_secret],
            CkksSecret.from_bytes,
            CkksSecret.to_bytes,
            covers=("flhe.schemes.fedml_he.keys.CkksSecret.from_bytes",),
        ),
        Decoder(
            "context of TenSEAL",
            lambda: [CkksPublic.from_bytes(ckks.scheme_public).context],
            _seal_context,
            NEVER,
            lambda: [CKKS.sizes.seal.context(np.arange(CKKS.sizes.n, dtype=np.uint64))],
        ),
    )
