"""Every decoder of bytes that come from outside or from a disk, and the laws that hold for all of them.

Out of a decoder comes an FlheError and no other exception, within a bound of time and memory. And it
takes nothing that it must not take:

    encode is NEVER    a mutant of what was signed, sealed or pinned is refused, whatever it is
    encode is ANY      whoever sent this may send anything of that form: it is its own
    else               what is taken encodes to exactly the bytes that were given: one value, one form
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import ModuleType
from typing import Any, Final, Literal

import flhe
import flhe.strategies
from flhe.errors import FlheError
from tests.fuzz.mutations import mutate

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes] | Literal["never", "any"]
Samples = Sequence[bytes] | Callable[[], Sequence[bytes]]
"""Messages, or what makes them when they are first needed."""


NEVER: Final = "never"
"""Nothing but the honest message is taken."""
ANY: Final = "any"
"""The sender may say anything of the right form."""

SECONDS = 20
"""A call that takes longer hangs. Honest ones take milliseconds; machines are slow at times."""

LONGEST = 2000
"""Characters of an error's text: it says what is wrong, and does not repeat what came."""

ROOM, FACTOR = 8 << 20, 96
"""Bytes that a call may have allocated at its peak: ROOM, and FACTOR for each byte of its input."""


class Hangs(BaseException):
    """A call that did not come back; no `except Exception` may swallow it."""


@dataclass(frozen=True)
class Decoder:
    """One decoder, or one place at which a message enters.

    Parameters
    ----------
    name : str
        Of the message type.
    good : sequence or callable
        Honest messages, all of which are taken.
    decode : callable
        bytes -> what is in them.
    encode : callable
        The law of acceptance: NEVER, ANY, or the inverse of `decode`.
    others : sequence or callable
        Honest messages that are refused here: of others, of another exchange.
    head : int or None
        Where a be32 length stands, of a head in CBOR, if the message has one.
    room : int
        Bytes that a call may allocate beyond what all may; tables that are made once, mostly.
    """

    name: str
    good: Samples
    decode: Decode = field(repr=False)
    encode: Encode = field(repr=False)
    others: Samples = field(default=(), repr=False)
    head: int | None = None
    room: int = 0

    @functools.cached_property
    def honest(self) -> tuple[bytes, ...]:
        """The honest messages, made once."""
        return tuple(self.good() if callable(self.good) else self.good)

    @functools.cached_property
    def refused(self) -> tuple[bytes, ...]:
        """Honest messages that do not belong here."""
        return tuple(self.others() if callable(self.others) else self.others)


def modules() -> Iterator[ModuleType]:
    """Modules of the library that may read what others wrote; none of the laboratory or the apps."""
    for package in (flhe, flhe.strategies):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "kernels" not in info.name and not info.name.startswith(("flhe_lab", "flhe_app")):
                yield importlib.import_module(info.name)


def take_honest(decoder: Decoder) -> None:
    """Honest messages are taken, and what is honest elsewhere is refused."""
    for data in decoder.honest:
        value = decoder.decode(data)
        if callable(decoder.encode):
            assert decoder.encode(value) == data, f"{decoder.name}: another encoding"
    for data in decoder.refused:
        try_one(decoder, data)


def mutants(decoder: Decoder, seed: int) -> Iterator[bytes]:
    """Mutants of a decoder's messages, without end; the same for the same seed."""
    random = Random(f"{decoder.name} {seed}")
    pool, good = (*decoder.honest, *decoder.refused), frozenset(decoder.honest)
    while True:
        data = mutate(pool, random, decoder.head)
        if data not in good:
            yield data


def try_one(decoder: Decoder, data: bytes, *, measured: bool = False) -> bool:
    """Hold a decoder to its laws with bytes that are not honest; True if it took them, as it may."""
    with _measured(decoder, data) if measured else in_time():
        try:
            value = decoder.decode(data)
        except FlheError as error:
            if len(str(error)) >= LONGEST:
                raise AssertionError(f"{decoder.name}: an error repeats what came") from None
            return False
    assert decoder.encode != NEVER, f"{decoder.name}: a mutant was taken for authentic"
    same = not callable(decoder.encode) or decoder.encode(value) == data
    assert same, f"{decoder.name}: taken, and it encodes to something else"
    return True


@contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    """Break off a call that hangs."""

    def ring(_number: int, _frame: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _measured(decoder: Decoder, data: bytes) -> Iterator[None]:
    """In time, and in little memory: what a few bytes claim is not allocated."""
    tracemalloc.start()
    try:
        with in_time():
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bound = ROOM + decoder.room + FACTOR * len(data)
    assert peak <= bound, f"{decoder.name}: {peak} bytes for {len(data)}, at most {bound}"


def run(decoder: Decoder, count: int, seed: int) -> int:
    """Try `count` mutants, and measure every fifth; how many of them were taken, as they may be."""
    taken = 0
    for number, data in zip(range(count), mutants(decoder, seed), strict=False):
        try:
            taken += try_one(decoder, data, measured=number % 5 == 0)
        except BaseException as error:
            error.add_note(f"{decoder.name}, seed {seed}, mutant {number}: {data[:2000].hex()}")
            raise
    return taken
