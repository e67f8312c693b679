"""Child process that draws residues: `python -m flhe.schemes.batchcrypt.residue_worker`.

`flhe.schemes.batchcrypt.residue_pool` starts it. It says READY once it can work, and only then gets
its order, by standard input: its length (4 bytes, little-endian) and canonical CBOR with p, q, h
(big-endian bytes) and count. Residues go to standard output as they have been verified, PIECE at a
time, each as long as n^2 needs, little-endian. So keys are neither in the arguments nor in the
environment, where others could read them, and nothing is written to standard error.

The worker is gone within a second of the process that started it. Exit status: 0, or one of the codes
below, by which alone a failure is told.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Annotated, BinaryIO, NoReturn

from flhe.errors import ConfigError, FaultError, ProtocolError
from flhe.wire.fields import BIG, within
from flhe.wire.record import Form, Record

READY = b"flhe residues 1\n"
PIECE = 512
"""Residues that are verified and sent together: at 3072 bits, two powers in half a second."""
MAX_ORDER = 1 << 14
"""Longest order, bytes: keys up to some 40,000 bits."""
MAX_COUNT = 1 << 24
NICENESS = 10
REFUSED, FAULT, ABANDONED, FAILED = 64, 65, 66, 67
"""Exit: a malformed order; a result that failed its verification; nobody waits; anything else."""


@dataclass(frozen=True, slots=True)
class _Order(Record):
    FORM = Form("residue order", MAX_ORDER)

    p: Annotated[int, BIG] = field(repr=False)
    q: Annotated[int, BIG] = field(repr=False)
    h: Annotated[int, BIG] = field(repr=False)
    count: Annotated[int, within(1, MAX_COUNT)]


def order(p: int, q: int, h: int, count: int) -> bytes:
    """What is sent to a worker. The bytes are secret."""
    body = _Order(p, q, h, count).to_bytes()
    return len(body).to_bytes(4, "little") + body


def read_order(stream: BinaryIO) -> _Order:
    """Inverse of `order`; ProtocolError for anything else."""
    length = int.from_bytes(stream.read(4), "little")
    if length > MAX_ORDER:
        raise ProtocolError(f"residue order: {length} bytes, at most {MAX_ORDER} are accepted")
    return _Order.from_bytes(stream.read(length))


def width(p: int, q: int) -> int:
    """Bytes of one residue."""
    return ((p * q) ** 2).bit_length() // 8 + 1


def serve(orders: BinaryIO, results: BinaryIO) -> None:
    """Take one order, write its residues. Raises FlheError where `Residues` does."""
    from flhe.schemes.batchcrypt.residues import Residues

    asked = read_order(orders)
    size = width(asked.p, asked.q)
    residues = Residues(asked.p, asked.q, asked.h, asked.count)
    for at in range(0, asked.count, PIECE):
        drawn = residues.draw(min(PIECE, asked.count - at))
        results.write(b"".join(u.to_bytes(size, "little") for u in drawn))
        results.flush()


def _watch_parent() -> None:
    """Leave soon after the parent has: a pipe's end stays open as long as a process that it forked."""
    parent = sys.argv[1] if len(sys.argv) > 1 else str(os.getppid())

    def wait() -> None:
        while str(os.getppid()) == parent:
            time.sleep(1.0)
        os._exit(ABANDONED)

    threading.Thread(target=wait, daemon=True).start()


def main() -> NoReturn:
    """Serve standard input and output; leaves with one of the codes above."""
    code = FAILED
    try:
        _watch_parent()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        from flhe.math.bigint import gmpy

        gmpy()
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        try:
            serve(sys.stdin.buffer, sys.stdout.buffer)
            code = 0
        except (ConfigError, ProtocolError):
            code = REFUSED
        except FaultError:
            code = FAULT
        except BrokenPipeError:
            code = ABANDONED
    finally:
        # Not sys.exit: a traceback has no business here.
        os._exit(code)


if __name__ == "__main__":
    main()
