"""Decryption by CRT: textbook ciphertexts, and faults."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import FaultError, FlheError
from flhe.schemes.batchcrypt import crt, powers
from flhe.schemes.batchcrypt.crt import Crt, Join

gmpy2 = pytest.importorskip("gmpy2")

P, Q = 2**61 - 1, 2**89 - 1
N = P * Q
PRIMES = [3, 7, 11, 13, 293, 433, 10_007, 65_537, 2**31 - 1, 2**61 - 1, 2**89 - 1]


def textbook(n: int, m: int, r: int) -> int:
    return (1 + m * n) * pow(r, n, n * n) % (n * n)


@pytest.mark.parametrize(
    ("p", "q", "ciphertext", "message"),
    [(293, 433, 935906717, 10100), (433, 293, 935906717, 10100), (11, 13, 13098, 5)],
)
def test_numbers_of_the_textbooks(p: int, q: int, ciphertext: int, message: int) -> None:
    assert Crt(p, q).decrypt([ciphertext]) == [message]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_primes_of_any_length(data: st.DataObject) -> None:
    p, q = data.draw(st.lists(st.sampled_from(PRIMES), min_size=2, max_size=2, unique=True))
    n = p * q
    if math.gcd(n, (p - 1) * (q - 1)) != 1:
        return
    messages = data.draw(st.lists(st.integers(0, n - 1) | st.sampled_from([0, 1, n - 1])))
    rs = [data.draw(st.integers(1, n - 1).filter(lambda r: math.gcd(r, n) == 1)) for _ in messages]
    sent = [textbook(n, m, r) for m, r in zip(messages, rs, strict=True)]
    assert Crt(p, q).decrypt(sent, data.draw(st.integers(1, 2))) == messages


def test_order_and_threads() -> None:
    messages = [1000 + i for i in range(3 * powers.CHUNK + 5)]
    assert Crt(P, Q).decrypt([textbook(N, m, m - 993) for m in messages], 3) == messages


# --- faults ---

SENT = [textbook(N, 10**30 + i, 12345 + i) for i in range(5)]


@pytest.mark.parametrize("half", [0, 1])
def test_a_flipped_bit_of_a_power_is_noticed(half: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for bit in range(110):

        def faulty(bases: Any, exponent: int, p: int, threads: int, bit: int = bit) -> list[Any]:
            right = powers.powmod_all(bases, exponent, p, threads)
            if p == (P, Q)[half]:
                right[2] ^= 1 << bit
            return right

        monkeypatch.setattr(crt, "powmod_all", faulty)
        with pytest.raises(FaultError):
            Crt(P, Q).decrypt(SENT)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_flipped_bit_of_what_is_kept_is_noticed(half: int, place: int) -> None:
    """The prime, h_p and its counterpart."""
    for bit in range(1, 60):
        broken = Crt(P, Q)
        kept = list(broken._primes[half])
        kept[place] ^= 1 << bit
        broken._primes[half] = tuple(kept)
        with pytest.raises(FaultError):
            broken.decrypt(SENT)


def test_a_fault_while_joining_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Join.__call__
    monkeypatch.setattr(Join, "__call__", lambda self, x, y: call(self, x, y) + P)
    with pytest.raises(FaultError):
        Crt(P, Q).decrypt(SENT)


@pytest.mark.parametrize("wrong", [0, P, Q, N, P * P, Q * Q, 5 * P, N * (N - 1)])
def test_multiples_of_a_factor_do_not_pass_and_nothing_secret_is_shown(wrong: int) -> None:
    one = Crt(P, Q)
    with pytest.raises(FaultError, match="no ciphertext") as raised:
        one.decrypt([*SENT, wrong])
    assert isinstance(raised.value, FlheError)
    assert not any(c.isdigit() for c in str(raised.value))
    assert repr(one) == "Crt(<150 bits>)"
    assert "secret" in repr(one._join)
