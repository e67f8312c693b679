"""Residues drawn beside other work: on threads or on child processes.

GMP holds Python's lock for as long as one operation takes, and gives it to a waiting thread only
now and then: a thread that draws residues would hold up the training loop beside it, and one that
trains would hold up the drawing. Processes of their own, at low priority, take what the training
leaves.

A child runs this module. It reads its order from standard input, p, q, h and count, so that keys are
neither in the arguments nor in the environment, where others could read them. It writes verified
residues to standard output, and nothing to standard error: a traceback of something that holds keys is
not for logs. It ends with its work, is killed when this process gives up, and is gone within a second
of this process. Nothing is waited for without bound.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from typing import NoReturn

import numpy as np

from flhe.coding.pack import run_all
from flhe.errors import FaultError, FlheError
from flhe.math.bigint import Big, from_rows, to_rows
from flhe.schemes.batchcrypt.powers import fault
from flhe.schemes.batchcrypt.residues import Residues, in_lanes
from flhe.wire.secret import Random

logger = logging.getLogger("flhe")

SMALL = 256
"""Fewer are drawn in this process: a child takes 0.2 s to start, and makes its own tables."""
NICENESS = 10
FAULT, FAILED = 65, 67
"""A child's exit: residues that failed their verification; anything else."""
_CALM = 60.0
_SLOWEST = 1e-3
"""Seconds for a residue of 1000 bits, fifty times what it takes; with the cube of the length."""


def draw(
    p: int, q: int, h: int, count: int, workers: int = 0, random: Random = secrets.token_bytes
) -> list[Big]:
    """Draw `count` residues beside other work, where that pays.

    Raises ConfigError, FaultError: as from `Residues`; FlheError also where a child takes far too long.

    Parameters
    ----------
    workers : int
        So many compute: threads where it is done in lanes, without Python's lock; else child processes
        of low priority. 0: this thread.
    random : Random, optional
        Where exponents come from; of another source than the system's, children know nothing.
    """
    alone = random is not secrets.token_bytes or workers <= 0 or count < SMALL
    if alone or in_lanes(p, q):
        source = Residues(p, q, h, count, random, max(1, workers))
        return source.draw(count)
    return draw_in_children(p, q, h, count, workers)


def seconds(bits: int, count: int) -> float:
    """Longest that `count` residues modulo an n of `bits` bits may take."""
    return _CALM + _SLOWEST * (bits / 1000) ** 3 * count


def draw_in_children(
    p: int, q: int, h: int, count: int, workers: int, timeout: float | None = None
) -> list[Big]:
    """Draw `count` residues on `workers` child processes, 1 at least.

    They are killed after `timeout` seconds, those of `seconds` by default. Where one does not start, or
    stops before it is done, this process draws.

    Raises FaultError: a child's residues failed their verification; FlheError: a child was not done in
    time.
    """
    shares = [len(range(i, count, workers)) for i in range(min(workers, count))]
    limit = seconds((p * q).bit_length(), max(shares)) if timeout is None else timeout
    orders = [f"{p} {q} {h} {share}\n".encode() for share in shares]
    try:
        done = run_all([functools.partial(_child, order, limit) for order in orders], workers)
    except OSError:
        done = []
    except subprocess.TimeoutExpired:
        raise FlheError(
            f"residues: child processes were not done after {limit:.0f} s and were stopped; "
            "draw fewer at a time, or in this process (workers=0)"
        ) from None
    codes = [child.returncode for child in done]
    if FAULT in codes:
        raise fault()
    data, width = np.frombuffer(b"".join(child.stdout for child in done), np.uint8), _width(p, q)
    if data.size != count * width:
        logger.warning("residues: child processes stopped (status %s), drawing in this one", codes)
        return Residues(p, q, h, count).draw(count)
    return from_rows(data.reshape(count, width))


def _child(order: bytes, timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run one child; TimeoutExpired once it was killed."""
    return subprocess.run(  # noqa: S603 - our own interpreter, module and process id
        # -P: what lies in the working directory is not imported by whoever gets the keys.
        [sys.executable, "-P", "-m", "flhe.schemes.batchcrypt.residue_pool", str(os.getpid())],
        input=order,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )


def _width(p: int, q: int) -> int:
    return ((p * q) ** 2).bit_length() // 8 + 1


# --- the child ---


def _watch_parent() -> None:
    """Leave soon after the parent has: a pipe's end stays open as long as a process that it forked."""
    parent = sys.argv[1] if len(sys.argv) > 1 else str(os.getppid())
    while str(os.getppid()) == parent:
        time.sleep(1.0)
    os._exit(FAILED)


def main() -> NoReturn:
    """Serve one order on standard input and output; leaves with one of the codes above."""
    code = FAILED
    try:
        threading.Thread(target=_watch_parent, daemon=True).start()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        p, q, h, count = map(int, sys.stdin.readline().split())
        residues = Residues(p, q, h, count).draw(count)
        sys.stdout.buffer.write(to_rows(residues, _width(p, q), count).data)
        sys.stdout.buffer.flush()
        code = 0
    except FaultError:
        code = FAULT
    finally:
        # Not sys.exit: a traceback has no business here.
        os._exit(code)


if __name__ == "__main__":
    main()
