"""Keys that one member makes for all: drawn from what is random alone, and never shown."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.seal_keys import SealSecret

Source = Callable[[int], bytes]
every_kind = pytest.mark.parametrize(
    "generate",
    [functools.partial(SecretKey.generate, 2048), functools.partial(SealSecret.generate, "2048")],
    ids=["paillier", "ckks"],
)


def counting() -> Source:
    numbers = itertools.count()
    return lambda n: bytes(next(numbers) * 0x9E3779B97F4A7C15 >> 40 & 255 for _ in range(n))


@every_kind
def test_keys_come_from_the_random_source_alone(generate: Callable[[Source], Any]) -> None:
    one, other = generate(counting()), generate(counting())
    assert one.to_bytes() == other.to_bytes()
    assert generate.func(generate.args[0]).to_bytes() != one.to_bytes()  # type: ignore[attr-defined]


def test_no_key_shows_itself() -> None:
    assert repr(SealSecret.generate("4096")) == "SealSecret(<4096 coefficients>)"
    key = SecretKey.generate(2048)
    for shown in (repr(key), str(key), repr(key.public)):
        assert shown in ("SecretKey(<2048 bits>)", "PublicKey(<2048 bits>)")
