"""Files of a state directory and of a server: a bad disk, or somebody who got at it, wrote them.

What is taken encodes to the same bytes, so nothing is lost or made up on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flhe.coding.support import Support
from flhe.keys.agreement import dealt, masking, states
from flhe.node.high_water_marks import Floor
from flhe.node.keyfile import KeyFile
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.esafl.keys import EsheKey
from flhe.schemes.fedml_he.keys import CkksPublic, CkksSecret
from flhe.training.draft import MAGIC as DRAFT
from flhe.training.draft import Draft
from flhe.training.model import MAGIC as MODEL
from flhe.training.model import Model
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.group import IDS, ROSTER, exchange, source
from tests.fuzz.masked import agreed
from tests.fuzz.masked import dealt as dealt_shares
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


def _state(kind: Any) -> Callable[[bytes], Any]:
    return lambda data: kind.from_bytes(data, IDS[0])


def _steps() -> list[Decoder]:
    e = exchange()
    kinds: list[tuple[Any, Any]] = [
        (states.Advertised, e.advertised),
        (states.Shared, e.shared),
        (states.Confirmed, [pair()[0]]),
    ]
    return [
        Decoder(
            f"state {kind.__name__}",
            functools.partial(_bytes_of, made[0]),
            _state(kind),
            kind.to_bytes,
            covers=("flhe.keys.agreement.states._Step.from_bytes",),
        )
        for kind, made in kinds
    ]


def _bytes_of(value: Any) -> list[bytes]:
    return [value.to_bytes()]


def _dealt() -> list[bytes]:
    made = dealt.deal(ROSTER, "rns-4096", random=source("dealt"))
    return [made[IDS[0].public].to_bytes()]


def _eshe() -> list[bytes]:
    own = np.array([1, -2, 3, 0], np.int8)
    return [EsheKey(own, own.astype(np.int32) * 3).to_bytes()]


def _context() -> list[bytes]:
    return [pair(0, CKKS)[0].scheme_public]


def _seal_context(data: bytes) -> None:
    CKKS.sizes.seal.check_context(data)


def entries() -> Sequence[Decoder]:
    """All of them."""
    e, keys = exchange(), "flhe.keys."
    public, secret = pair()[0].scheme_public, pair()[0].scheme_secret
    ckks = pair(0, CKKS)[0]
    return (
        *_steps(),
        Decoder(
            "state Epoch",
            lambda: [e.epochs[0].to_bytes()],
            states.Epoch.from_bytes,
            states.Epoch.to_bytes,
            covers=(keys + "states.Epoch.from_bytes",),
        ),
        Decoder(
            "key file",
            lambda: [
                KeyFile(b"epoch", "1-2").to_bytes(),
                KeyFile(b"epoch", "1-2", (3, 1, 2), 2, 3).to_bytes(),
            ],
            KeyFile.from_bytes,
            KeyFile.to_bytes,
            covers=(keys + "keyfile.KeyFile.from_bytes",),
        ),
        Decoder(
            "floor",
            lambda: [Floor().to_bytes(), Floor(3, 2, 400).to_bytes()],
            Floor.from_bytes,
            Floor.to_bytes,
            covers=("flhe.node.high_water_marks.Floor.from_bytes",),
        ),
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
            "dealt file",
            _dealt,
            dealt.Dealt.from_bytes,
            dealt.Dealt.to_bytes,
            covers=(keys + "dealt.Dealt.from_bytes",),
        ),
        Decoder(
            "ESHE key",
            _eshe,
            EsheKey.from_bytes,
            EsheKey.to_bytes,
            covers=("flhe.schemes.esafl.keys.EsheKey.from_bytes",),
        ),
        Decoder(
            "dealt shares",
            lambda: [dealt_shares(0).to_bytes()],
            masking.Dealt.from_bytes,
            masking.Dealt.to_bytes,
            covers=(keys + "masking.Dealt.from_bytes",),
        ),
        Decoder(
            "agreed survivors",
            lambda: [agreed(0)[0].to_bytes()],
            masking.Agreed.from_bytes,
            masking.Agreed.to_bytes,
            covers=(keys + "masking.Agreed.from_bytes",),
        ),
        Decoder(
            "public key of Paillier",
            lambda: [public],
            PublicKey.from_bytes,
            PublicKey.to_bytes,
            covers=("flhe.schemes.batchcrypt.keys.PublicKey.from_bytes",),
        ),
        Decoder(
            "secret key of Paillier",
            lambda: [secret],
            SecretKey.from_bytes,
            SecretKey.to_bytes,
            covers=("flhe.schemes.batchcrypt.keys.SecretKey.from_bytes",),
        ),
        Decoder(
            "public key of CKKS",
            lambda: [ckks.scheme_public],
            CkksPublic.from_bytes,
            CkksPublic.to_bytes,
            covers=("flhe.schemes.fedml_he.keys.CkksPublic.from_bytes",),
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
