"""Mutants of every message and file: no crash, no hang, nothing large, and nothing taken wrongly.

A few of each type here; 10,000 of each with `-m sweep`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

import pytest

from flhe.errors import ProtocolError
from tests.fuzz.decoders import NEVER, AcceptedError, Decoder, mutants, run, take_honest, try_one
from tests.fuzz.modules import modules
from tests.fuzz.registry import all_decoders

FEW, MANY = 12, 10_000
READERS = {"from_bytes", "from_parts", "from_fields", "from_line", "from_parameters"}
"""Names of class methods that decode."""
FUNCTIONS = {"loads", "unpack", "unpack_clear", "from_bits", "from_elements", "open_detached"} | {
    "read_key",
    "read_answer",
}
"""Names of functions that do, besides those above."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize("name", list(all_decoders()))
def test_a_few_mutants(name: str) -> None:
    decoder = all_decoders()[name]
    take_honest(decoder)
    run(decoder, FEW, seed=0, measure_every=1)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(all_decoders()))
def test_many_mutants(name: str) -> None:
    decoder = all_decoders()[name]
    take_honest(decoder)
    taken = run(decoder, MANY, seed=1)
    print(f"{name}: {MANY} mutants, {taken} taken as another honest value")
    assert taken == 0 or decoder.encode is not NEVER


def test_no_decoder_is_missing() -> None:
    covered = {name for decoder in all_decoders().values() for name in decoder.covers}
    found = {name for name in _decoders() if "wire.record." not in name}  # see test_declared.py
    assert not found - covered, "a decoder without an entry in tests/fuzz"
    assert not covered - found, "an entry for what is not there any more"


def _decoders() -> Iterator[str]:
    """Qualified names of all that reads bytes or fields of others."""
    for module in modules():
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(member):
                yield from _methods(member)
            elif name in READERS | FUNCTIONS and inspect.isfunction(member):
                yield f"{module.__name__}.{name}"


def _methods(kind: type) -> Iterator[str]:
    """Its own: those that it inherits are named where they are written."""
    for name in READERS & vars(kind).keys():
        if isinstance(vars(kind)[name], classmethod):
            yield f"{kind.__module__}.{kind.__qualname__}.{name}"


# --- the laws themselves ---


def decoder_of(decode: object) -> Decoder:
    return Decoder("test", lambda: [b"\x83\x01\x02\x03"], decode, bytes)  # type: ignore[arg-type]


def test_another_exception_is_told() -> None:
    def decode(data: bytes) -> bytes:
        return {b"\x83\x01\x02\x03": data}[data]

    with pytest.raises(KeyError) as caught:
        run(decoder_of(decode), 3, seed=0)
    assert "mutant 0" in str(caught.value.__notes__)


def test_a_second_encoding_is_told() -> None:
    with pytest.raises(AcceptedError, match="something else"):
        run(decoder_of(lambda data: data[:1]), 50, seed=0)


def test_what_is_taken_for_authentic_is_told() -> None:
    decoder = Decoder("test", lambda: [b"honest"], bytes, NEVER)
    with pytest.raises(AcceptedError, match="authentic"):
        run(decoder, 50, seed=0)


def test_what_is_large_is_told() -> None:
    with pytest.raises(AssertionError, match="at most"):
        try_one(decoder_of(lambda data: bytes(1 << 26) and data), b"x", measured=True)


def test_a_long_error_is_told() -> None:
    def decode(data: bytes) -> bytes:
        raise ProtocolError("x" * 5000)

    with pytest.raises(AssertionError, match="repeats"):
        try_one(decoder_of(decode), b"x")


def test_mutants_are_many_and_the_same_each_time() -> None:
    decoder = all_decoders()["roster file, pinned"]
    first, second = (
        [data for _, data in zip(range(500), mutants(decoder, 3), strict=False)] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 400
    assert not set(first) & set(decoder.honest)
