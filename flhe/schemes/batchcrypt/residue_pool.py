"""Residues drawn beside other work: on threads or on child processes.

GMP holds Python's lock for as long as one operation takes, and gives it to a waiting thread only
now and then: a thread that draws residues would hold up the training loop beside it, and one that
trains would hold up the drawing. Processes of their own, at low priority, take what the training
leaves.

A child gets its keys by a pipe, see `flhe.schemes.batchcrypt.residue_worker`. It ends with its
work, when this process is gone or gives up (it is killed). Nothing is waited for without bound.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from flhe.errors import FlheError
from flhe.math.bigint import Big, gmpy
from flhe.math.fault import fault
from flhe.schemes.batchcrypt import residue_worker
from flhe.schemes.batchcrypt.residues import Residues, in_lanes
from flhe.wire.secret import Random

logger = logging.getLogger("flhe")

_Child = subprocess.Popen[bytes]

SMALL = 256
"""Fewer are drawn in this process: a child takes 0.2 s to start, and makes its own tables."""
START = 30.0
"""Seconds that children may take to start; after that, this process draws."""
_CALM = 60.0
_SLOWEST = 1e-3
"""Seconds for a residue of 1000 bits, fifty times what it takes; with the cube of the length."""


def draw(
    p: int, q: int, h: int, count: int, workers: int = 0, random: Random | None = None
) -> list[Big]:
    """Draw `count` residues beside other work, where that pays.

    Raises ConfigError, FaultError: as from `Residues`; FlheError also where a child stops or takes far
    too long.

    Parameters
    ----------
    workers : int
        So many compute: threads where it is done in lanes, without Python's lock; else child processes
        of low priority. 0: this thread.
    random : Random, optional
        Where exponents come from; given, there are no child processes. They draw from `secrets`.
    """
    alone = random is not None or workers <= 0 or count < SMALL
    if alone or in_lanes(p, q):
        source = Residues(p, q, h, count, random or secrets.token_bytes, max(1, workers))
        return source.draw(count)
    return draw_in_children(p, q, h, count, workers)


def seconds(bits: int, count: int) -> float:
    """Longest that `count` residues modulo an n of `bits` bits may take."""
    return _CALM + _SLOWEST * (bits / 1000) ** 3 * count


def draw_in_children(
    p: int, q: int, h: int, count: int, workers: int, timeout: float | None = None
) -> list[Big]:
    """Draw `count` residues on `workers` child processes, 1 at least.

    They are killed after `timeout` seconds, those of `seconds` by default.

    Raises FaultError: a child's residues failed their verification; FlheError: a child was not done in
    time, or stopped.
    """
    p, q, h = int(p), int(q), int(h)
    shares = [len(range(i, count, workers)) for i in range(min(workers, count))]
    width = residue_worker.width(p, q)
    limit = seconds((p * q).bit_length(), max(shares)) if timeout is None else timeout
    children: list[_Child] = []
    with ThreadPoolExecutor(len(shares), thread_name_prefix="flhe-residues") as pool:
        try:
            if not _ready(pool, children, len(shares)):
                logger.warning(
                    "residues: a child process could not be started, drawing in this one"
                )
                return Residues(p, q, h, count).draw(count)
            drawn = [
                pool.submit(_drawn, child, residue_worker.order(p, q, h, share), share * width)
                for child, share in zip(children, shares, strict=True)
            ]
            done, late = wait(drawn, limit, FIRST_EXCEPTION)
            data = b"".join(part.result() for part in drawn if part in done)
            if late:
                raise FlheError(
                    f"residues: child processes were not done after {limit:.0f} s and were stopped; "
                    "draw fewer at a time, or in this process (workers=0)"
                )
        finally:
            for child in children:  # their pipes end, and so do the threads that read them
                _end(child)
    read = gmpy().mpz.from_bytes
    return [read(data[at : at + width], "little") for at in range(0, len(data), width)]


def _ready(pool: ThreadPoolExecutor, children: list[_Child], count: int) -> bool:
    """Start `count` children, into `children`; whether all say in time that they can work."""
    try:
        for _ in range(count):
            children.append(_start())
    except OSError:
        return False
    said = [pool.submit(_read, child, len(residue_worker.READY)) for child in children]
    done, late = wait(said, START)
    return not late and all(one.result() == residue_worker.READY for one in done)


def _start() -> _Child:
    # Standard error goes nowhere: a traceback of something that holds keys is not for logs.
    return subprocess.Popen(  # noqa: S603 - our own interpreter, module and process id
        # -P: what lies in the working directory is not imported by whoever gets the keys.
        [sys.executable, "-P", "-m", "flhe.schemes.batchcrypt.residue_worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _end(child: _Child) -> None:
    """Kill what still runs, and reap it."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _read(child: _Child, size: int) -> bytes:
    """What a child sends next: so many bytes, or fewer where its pipe ends."""
    assert child.stdout is not None
    return child.stdout.read(size)


def _drawn(child: _Child, order: bytes, size: int) -> bytes:
    """What a child that is ready makes of its order, `size` bytes."""
    assert child.stdin is not None
    with contextlib.suppress(OSError):  # one that died is noticed below
        child.stdin.write(order)
        child.stdin.flush()
    data = _read(child, size)
    if len(data) == size:
        return data
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    if child.returncode == residue_worker.FAULT:
        raise fault()
    raise FlheError(
        f"residues: a child process stopped (status {child.returncode}) before it was done; "
        "workers=0 draws in this process"
    )
