"""`flhe bench`: encryption, addition and decryption of one update, row by row."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from flhe.errors import ConfigError
from flhe.math.keystream import BLOCK, CHUNK, Stream
from flhe.schemes.flashe.scheme import Flashe
from flhe_lab.bench.contender import PHASES, Contender, Setting, Work
from flhe_lab.bench.federation import layout_of, terms_of
from flhe_lab.bench.host import machine, pinned
from flhe_lab.bench.schemes import NARROW, SCHEMES, esafl
from flhe_lab.bench.turns import Measured, Progress, measure, silent

Rows = Mapping[str, Measured]


def bench(
    schemes: Sequence[str],
    setting: Setting,
    *,
    repeats: int = 20,
    with_peers: bool = False,
    progress: Progress = silent,
) -> Rows:
    """Time everything, by name; check every mean.

    Raises ConfigError: an unknown scheme, or a setting that cannot be. FlheError: a wrong mean.
    """
    for name in schemes:
        if name not in SCHEMES:
            raise ConfigError(f"unknown scheme {name!r}; choose from {', '.join(SCHEMES)}")
    with pinned(setting.threads):
        updates = setting.updates()
        contenders: list[Contender] = [SCHEMES[n](setting, updates) for n in schemes]
        if "esafl" in schemes:
            contenders.append(esafl(setting, updates, NARROW))
        contenders += limits(setting)
        if with_peers:
            from flhe_lab.bench.peers import peers

            contenders += peers(setting, updates)
        return measure(contenders, repeats, progress)


def to_data(rows: Rows, setting: Setting) -> dict[str, Any]:
    """Machine and rows, as JSON values; null for what a row has not."""
    return {"machine": machine(), "rows": [_row(row, setting) for row in rows.values()]}


def _row(row: Measured, setting: Setting) -> dict[str, Any]:
    made, times = row.contender, {phase: row.times.get(phase) for phase in PHASES}
    size = made.upload_bytes
    return {
        "name": made.name,
        "kind": made.kind,
        **asdict(setting),
        **{f"{phase}_s": each and asdict(each) for phase, each in times.items()},
        "upload_bytes": size,
        "bytes_per_value": None if size is None else size / setting.values,
        "max_error": row.error,
        "note": made.note,
    }


# --- what nobody can be faster than: OpenSSL's AES-256-CTR, NumPy adding float32 ---


def limits(setting: Setting) -> list[Contender]:
    """AES over FLASHE's own keystream; an addition that stays in cache."""
    values, scheme = setting.values, Flashe()
    terms, adder = terms_of(scheme), scheme.adder(setting.cohort)
    lane = np.dtype(adder.packing.lane).itemsize
    length = values + terms.trailer_lanes(layout_of(values))
    sealing, opening = (
        sum(map(len, adder.mask_terms(senders))) for senders in ((0,), setting.survivors)
    )
    piece = min(values, 1 << 15)
    a, b, c = (np.zeros(piece, np.float32) for _ in range(3))

    def add() -> None:
        for _ in range(values // piece):
            np.add(a, b, out=c)
        rest = values % piece
        np.add(a[:rest], b[:rest], out=c[:rest])

    keystream = {
        "encrypt": _keystream(sealing * length * lane),
        "decrypt": _keystream(opening * length * lane),
    }
    note = (
        f"AES-256-CTR over {sealing} streams to encrypt, {opening} to decrypt, of {length} lanes of "
        f"{8 * lane} bits; on one thread"
    )
    cached = f"pieces of {piece} that stay in cache"
    return [
        Contender("openssl-aes-ctr", keystream, "limit", note),
        Contender("numpy-add-f32", {"add": add}, "limit", cached),
    ]


def _keystream(nbytes: int) -> Work:
    out = np.empty(CHUNK + BLOCK, np.uint8)
    key = secrets.token_bytes(32)

    def run() -> None:
        stream = Stream(key, 0)
        for at in range(0, nbytes, CHUNK):
            stream.into(out, min(CHUNK, nbytes - at))

    return run
