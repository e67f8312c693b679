"""Residues drawn beside other work: on threads or on child processes.

GMP holds Python's lock for as long as one operation takes, and gives it to a waiting thread only
now and then: a thread that draws residues would hold up the training loop beside it, and one that
trains would hold up the drawing. Processes of their own, at low priority, take what the training
leaves.

A child gets its keys by a pipe, see `flhe.schemes.batchcrypt.residue_worker`. It ends with its
work, when this process is gone (its pipe ends) or gives up (it is killed). Nothing is waited for
without bound.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field

from flhe.errors import FlheError
from flhe.math.bigint import Big, gmpy
from flhe.math.fault import fault
from flhe.schemes.batchcrypt import residue_worker
from flhe.schemes.batchcrypt.residues import Residues, in_lanes
from flhe.wire.secret import Random

logger = logging.getLogger("flhe")

SMALL = 256
"""Fewer are drawn in this process: a child takes 0.2 s to start, and makes its own tables."""
START = 30.0
"""Seconds that children may take to start; after that, this process draws."""
PIPE = 1 << 18
_CALM = 60.0
_SLOWEST = 1e-3
"""Seconds for a residue of 1000 bits, fifty times what it takes; with the cube of the length."""


@dataclass(slots=True)
class _Child:
    """A process, its share of the residues, the bytes that it is to send next, and those it sent."""

    process: subprocess.Popen[bytes]
    count: int
    wanted: int
    data: bytearray = field(default_factory=bytearray, repr=False)
    ended: bool = False


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
    shares = [count // workers + (i < count % workers) for i in range(workers)]
    children: list[_Child] = []
    try:
        if not _ready(children, [share for share in shares if share]):
            logger.warning("residues: a child process could not be started, drawing in this one")
            return Residues(p, q, h, count).draw(count)
        return _drawn(children, p, q, h, timeout)
    finally:
        for child in children:
            _end(child.process)


def _ready(children: list[_Child], shares: list[int]) -> bool:
    """Start a child for each share, into `children`; whether all say that they can work."""
    ready = residue_worker.READY
    try:
        for share in shares:
            children.append(_Child(_start(), share, len(ready)))
        _read(children, time.monotonic() + START)
    except OSError:  # TimeoutError is one
        return False
    return all(child.data == ready for child in children)


def _start() -> subprocess.Popen[bytes]:
    # Standard error goes nowhere: a traceback of something that holds keys is not for logs.
    return subprocess.Popen(  # noqa: S603 - our own interpreter, module and process id
        # -P: what lies in the working directory is not imported by whoever gets the keys.
        [sys.executable, "-P", "-m", "flhe.schemes.batchcrypt.residue_worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs, and reap it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _drawn(children: list[_Child], p: int, q: int, h: int, timeout: float | None) -> list[Big]:
    """What the children draw, once they are ready."""
    width = residue_worker.width(p, q)
    longest = max(child.count for child in children)
    limit = seconds((p * q).bit_length(), longest) if timeout is None else timeout
    deadline = time.monotonic() + limit
    for child in children:
        child.wanted = child.count * width
        child.data.clear()
        assert child.process.stdin is not None
        with contextlib.suppress(OSError):  # one that died is noticed below
            # The pipe holds more than an order; it is left open: its end tells the child to stop.
            child.process.stdin.write(residue_worker.order(p, q, h, child.count))
    try:
        _read(children, deadline)
    except TimeoutError:
        raise FlheError(
            f"residues: child processes were not done after {limit:.0f} s and were stopped; draw "
            "fewer at a time, or in this process (workers=0)"
        ) from None
    except OSError as error:
        raise FlheError(
            f"residues: child processes cannot be read from ({error.strerror}); draw in this process "
            "(workers=0), or let it have more open files"
        ) from None
    for child in children:
        if len(child.data) < child.wanted and child.ended:
            raise _why(child.process)
    read = gmpy().mpz.from_bytes
    return [
        read(child.data[at : at + width], "little")
        for child in children
        for at in range(0, child.wanted, width)
    ]


def _why(process: subprocess.Popen[bytes]) -> FlheError:
    """Why a child whose pipe has ended did not send all."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    if process.returncode == residue_worker.FAULT:
        return fault()
    return FlheError(
        f"residues: a child process stopped (status {process.returncode}) before it was done; "
        "workers=0 draws in this process"
    )


def _read(children: list[_Child], deadline: float) -> None:
    """Read what is wanted of each, or until one pipe has ended; TimeoutError after the deadline."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            assert child.process.stdout is not None
            selector.register(child.process.stdout, selectors.EVENT_READ, child)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                child = key.data
                part = os.read(key.fd, min(PIPE, child.wanted - len(child.data)))
                child.data += part
                child.ended = not part
                if child.ended:
                    return
                if len(child.data) == child.wanted:
                    selector.unregister(key.fileobj)
