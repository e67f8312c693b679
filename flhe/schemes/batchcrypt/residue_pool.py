"""Residues drawn beside other work, on threads or in child processes.

GMP holds Python's lock during one operation and rarely yields it to a waiting thread. A thread that
draws residues would stall the training loop, and the training loop would stall the drawing. Child
processes of low priority use the time that training leaves.

A child runs this module. It reads p, q, h, the count, and the orders of a subgroup from standard
input. So keys are in neither the arguments nor the environment, where others could read them. The
child writes verified residues to standard output, and nothing to standard error: a traceback could
put keys into a log.
It ends with its work, is killed when the parent gives up, and exits within a second of the parent.
All waits have a timeout.
"""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from flhe.errors import FaultError, FlheError, logger
from flhe.math.bigint import Big, from_rows, to_rows
from flhe.math.threads import run_all
from flhe.schemes.batchcrypt.powers import fault
from flhe.schemes.batchcrypt.residues import Residues, in_lanes
from flhe.wire.secret import Random

SMALL = 256
"""Minimum count for child processes: one takes 0.2 s to start, and makes its own tables."""
NICENESS = 10
FAULT, FAILED = 65, 67
"""Exit codes of a child: residues that failed their verification; any other failure."""
_CALM = 60.0
_SLOWEST = 1e-3
"""Seconds for a residue of 1000 bits, fifty times the usual; grows with the cube of the length."""


def draw(
    p: int,
    q: int,
    h: int,
    count: int,
    workers: int = 0,
    random: Random = secrets.token_bytes,
    orders: Sequence[int] = (),
) -> list[Big]:
    """Draw `count` residues beside other work, if that is faster.

    Raises ConfigError, FaultError: as from `Residues`; FlheError if a child exceeds its timeout.

    Parameters
    ----------
    workers : int
        Number of workers: threads if lanes compute, without Python's lock; else child processes of
        low priority. 0: this thread.
    random : Random, optional
        Source of exponents. Children use the system's source only.
    """
    alone = random is not secrets.token_bytes or workers <= 0 or count < SMALL
    if alone or in_lanes(p, q):
        source = Residues(p, q, h, count, random, max(1, workers), orders)
        return source.draw(count)
    return draw_in_children(p, q, h, count, workers, orders=orders)


def seconds(bits: int, count: int) -> float:
    """Return the timeout in seconds for `count` residues modulo an n of `bits` bits."""
    return _CALM + _SLOWEST * (bits / 1000) ** 3 * count


def draw_in_children(
    p: int,
    q: int,
    h: int,
    count: int,
    workers: int,
    timeout: float | None = None,
    orders: Sequence[int] = (),
) -> list[Big]:
    """Draw `count` residues in `workers` child processes, 1 at least.

    They are killed after `timeout` seconds, by default those of `seconds`. If one does not start,
    or stops early, this process draws instead.

    Raises FaultError: a child's residues failed their verification; FlheError: a child exceeded the
    timeout.
    """
    shares = [len(range(i, count, workers)) for i in range(min(workers, count))]
    limit = seconds((p * q).bit_length(), max(shares)) if timeout is None else timeout
    lines = [" ".join(map(str, (p, q, h, share, *orders))) + "\n" for share in shares]
    try:
        calls = [functools.partial(_child, line.encode(), limit) for line in lines]
        done = run_all(calls, workers)
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
        return Residues(p, q, h, count, orders=orders).draw(count)
    return from_rows(data.reshape(count, width))


def _child(order: bytes, timeout: float) -> subprocess.CompletedProcess[bytes]:
    """Run one child; TimeoutExpired after it was killed."""
    return subprocess.run(  # noqa: S603 - our own interpreter, module and process id
        # -P: the child, which gets the keys, imports nothing from the working directory.
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
    """Exit soon after the parent: its pipe stays open while a process that it forked lives."""
    parent = sys.argv[1] if len(sys.argv) > 1 else str(os.getppid())
    while str(os.getppid()) == parent:
        time.sleep(1.0)
    os._exit(FAILED)


def main() -> NoReturn:
    """Serve one order on standard input and output; exits with one of the codes above."""
    code = FAILED
    try:
        threading.Thread(target=_watch_parent, daemon=True).start()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        p, q, h, count, *orders = map(int, sys.stdin.readline().split())
        residues = Residues(p, q, h, count, orders=orders).draw(count)
        sys.stdout.buffer.write(to_rows(residues, _width(p, q), count).data)
        sys.stdout.buffer.flush()
        code = 0
    except FaultError:
        code = FAULT
    finally:
        # Not sys.exit: a traceback could reveal keys.
        os._exit(code)


if __name__ == "__main__":
    main()
