"""Mutants of every message, file and record: no crash, no hang, nothing large or taken wrongly.

A few of each type here; 10,000 of each with `-m sweep`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from random import Random
from types import CodeType
from typing import Any

import pytest

from flhe.errors import ProtocolError
from tests.fuzz.declared import all_decoders, all_records, of_one_reader, refused, samples
from tests.fuzz.decoders import (
    NEVER,
    AcceptedError,
    Decode,
    Decoder,
    Encode,
    modules,
    run,
    take_honest,
    try_one,
)

FEW, MANY = 50, 10_000
READERS = {"from_bytes", "from_parts", "from_fields", "from_line", "from_parameters"}
"""Names of class methods that decode."""
FUNCTIONS = {"loads", "unpack", "unpack_clear", "from_bits", "from_elements"} | {
    "read_key",
    "read_answer",
}
"""Names of functions that do, besides those above."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


sweep = (pytest.mark.sweep, pytest.mark.timeout(7200))


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=sweep)])
@pytest.mark.parametrize("name", list(all_decoders()))
def test_mutants(name: str, count: int) -> None:
    decoder = all_decoders()[name]
    take_honest(decoder)
    taken = run(decoder, count, seed=count, measure_every=1 if count == FEW else 10)
    print(f"{name}: {count} mutants, {taken} taken as another honest value")
    assert taken == 0 or decoder.encode is not NEVER


@pytest.mark.parametrize("name", all_records())
def test_what_a_declaration_does_not_allow_is_refused(name: str) -> None:
    assert samples().get(name), "a class of records of which nothing honest is in tests/fuzz"
    for record in of_one_reader(name)[:2]:
        for what, data in refused(record, Random(name)):
            assert not try_one(all_decoders()[name], data), what


def test_no_decoder_is_missing() -> None:
    """All that reads bytes or fields of others reads those of some honest message here."""
    for decoder in all_decoders().values():
        take_honest(decoder)  # what is made once is made now, and not as a message is read
    ran = set[CodeType]()

    def notes(frame: Any, *_: Any) -> None:
        ran.add(frame.f_code)

    sys.setprofile(notes)
    try:
        for decoder in all_decoders().values():
            decoder.decode(decoder.honest[0])
    finally:
        sys.setprofile(None)
    missing = [code.co_qualname for code in _readers() if code not in ran]
    assert not missing, "a decoder without an entry in tests/fuzz"


def _readers() -> Iterator[CodeType]:
    for module in modules():
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(member):  # what it inherits is named where it is written
                own = [vars(member)[method] for method in READERS & vars(member).keys()]
                yield from (m.__func__.__code__ for m in own if isinstance(m, classmethod))
            elif name in READERS | FUNCTIONS and inspect.isfunction(member):
                yield member.__code__


# --- the laws themselves ---

HONEST = b"\x83\x01\x02\x03"


def long_error(data: bytes) -> bytes:
    if data == HONEST:
        return data
    raise ProtocolError("x" * 5000)


@pytest.mark.parametrize(
    ("decode", "encode", "raised", "says"),
    [
        (lambda data: {HONEST: data}[data], bytes, KeyError, None),
        (lambda data: data[:1], bytes, AcceptedError, "something else"),
        (bytes, NEVER, AcceptedError, "authentic"),
        (lambda data: bytes(1 << 26) and data, bytes, AssertionError, "at most"),
        (long_error, bytes, AssertionError, "repeats"),
    ],
    ids=["another exception", "a second encoding", "taken for authentic", "large", "a long error"],
)
def test_what_breaks_a_law_is_told(
    decode: Decode, encode: Encode, raised: type[Exception], says: str | None
) -> None:
    with pytest.raises(raised, match=says) as caught:
        run(Decoder("test", [HONEST], decode, encode), 50, seed=0, measure_every=1)
    assert "test, seed 0, mutant " in str(caught.value.__notes__)
