"""Paillier: another library, unsound keys, and decryption that is verified, each power used once."""

from __future__ import annotations

import functools
import itertools
import math
import secrets
from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ConfigError, FaultError, FlheError, ProtocolError
from flhe.math.bigint import from_rows, random_blum_prime
from flhe.schemes.base import Secrets
from flhe.schemes.batchcrypt import crt, powers
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptOpener, BatchCryptSealer
from flhe.schemes.batchcrypt.crt import Crt, Join
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.residue_pool import draw_in_children
from flhe.schemes.batchcrypt.residues import Residues
from flhe.schemes.batchcrypt.scheme import SUBGROUP, BatchCrypt
from flhe.schemes.seal_keys import SealSecret
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, OTHER_SLOTS, SLOT, sum_of, whole
from tests.patience import PATIENCE_S


@functools.cache
def pair(number: int = 0, bits: int = 2048, subgroup: bool = False) -> SecretKey:
    return SecretKey.generate(bits, subgroup)


SCHEME = BatchCryptAdder(BatchCrypt(key_bits=2048), 3, 16, public=pair().public)


def sealer(rank: int = 0, threads: int = 1) -> BatchCryptSealer:
    return BatchCryptSealer(SCHEME, pair(), rank, threads=threads)


def opened(sealed: Sealed, threads: int = 1) -> list[int]:
    return BatchCryptOpener(SCHEME, pair(), threads).decrypt(sealed).tolist()


# --- python-paillier ---


def test_python_paillier_decrypts_what_we_encrypt() -> None:
    """Sums at 2048 bits; it knows p and q, and nothing of our code."""
    n = pair().public.n
    theirs = phe.PaillierPrivateKey(phe.PaillierPublicKey(n), pair().p, pair().q)
    vectors = np.random.default_rng(3).integers(-32767, 32768, (3, 300)).astype(np.int32)
    parts = (sealer(rank).encrypt(whole(values), SLOT) for rank, values in enumerate(vectors))
    total = sum_of(SCHEME, parts)
    found = [theirs.raw_decrypt(int(c)) for c in from_rows(total.data.reshape(-1, 512))]
    signed = [gmpy2.mpz(m - n if m > n // 2 else m) for m in found]
    assert np.array_equal(SCHEME.batch.digits(signed, 300, 3), vectors.sum(axis=0))


@pytest.mark.parametrize("bits", [2048, 3072])
def test_python_paillier_decrypts_the_subgroup_variant(bits: int) -> None:
    """And opens what it opens; a ciphertext that hides its plaintext elsewhere is refused."""
    key = pair(bits=bits, subgroup=True)
    n, numbers = gmpy2.mpz(key.public.n), [gmpy2.mpz(i) ** 40 for i in range(9)]
    hidden = Residues(key.p, key.q, key.h, 9, orders=key.orders).draw(9)
    for u in hidden:
        for prime, order in zip((key.p, key.q), key.orders, strict=True):
            assert gmpy2.powmod(u, order, prime**2) == 1 != u % prime
    sealed = [(1 + m * n) * u % n**2 for m, u in zip(numbers, hidden, strict=True)]
    theirs = phe.PaillierPrivateKey(phe.PaillierPublicKey(int(n)), key.p, key.q)
    assert [theirs.raw_decrypt(int(c)) for c in sealed] == numbers
    ours = Crt(key.p, key.q, key.orders)
    assert ours.decrypt(sealed) == numbers
    [foreign] = Residues(key.p, key.q, key.h, 1).draw(1)
    with pytest.raises(ProtocolError, match="outside the key's subgroup"):
        ours.decrypt([*sealed[1:], sealed[0] * foreign % n**2])


def test_exponents_in_the_subgroup_are_uniform() -> None:
    """Each residue is base^a for the a that the random source gave, modulo each order."""
    key, count = pair(bits=2048, subgroup=True), 5
    size = (sum(o.bit_length() for o in key.orders) + 128 + 7) // 8
    tape = secrets.token_bytes(count * size)
    drawn = Residues(key.p, key.q, key.h, count, lambda _: tape, orders=key.orders).draw(count)
    exponents = [int.from_bytes(tape[at : at + size], "little") for at in range(0, len(tape), size)]
    for prime, order in zip((key.p, key.q), key.orders, strict=True):
        base = gmpy2.powmod(key.h, key.public.n * ((prime - 1) // order), prime**2)
        assert [u % prime**2 for u in drawn] == [gmpy2.powmod(base, a, prime**2) for a in exponents]


def test_children_draw_from_the_subgroup_too() -> None:
    key = pair(bits=2048, subgroup=True)
    drawn = draw_in_children(key.p, key.q, key.h, 20, 2, PATIENCE_S, key.orders)
    assert all(gmpy2.powmod(u, key.orders[0] * key.orders[1], key.public.n**2) == 1 for u in drawn)
    assert len(set(drawn)) == 20


# --- keys ---


def test_the_subgroup_variant_needs_a_sites_word() -> None:
    """A deployed node has not given it, a simulated one has, and other variants need none."""
    given = {False: SUBGROUP.default, True: SUBGROUP.simulated}
    assert given == {False: False, True: True}
    scheme = BatchCrypt(subgroup=True)
    name, why = scheme.check_limits({SUBGROUP.name: False}) or ("", "")
    assert (name, "subgroup" in why) == ("paillier-subgroup", True)
    assert scheme.check_limits({SUBGROUP.name: True}) is None
    assert BatchCrypt().check_limits({SUBGROUP.name: False}) is None
    assert SUBGROUP.stricter(True, False) is False  # both the roster and the site allow it
    assert SUBGROUP in BatchCrypt.limits


def test_unsound_orders_are_refused() -> None:
    key, other = pair(bits=2048, subgroup=True), pair()
    a, b = key.orders
    for says, bad, subgroup in (
        ("it is of the subgroup variant", key, False),
        ("it is not of the subgroup variant", other, True),
        ("an order does not fit", SecretKey(key.p, key.q, (b, a)), True),
        ("an order does not fit", SecretKey(key.p, key.q, (a, 3)), True),
        ("a factor of it is not prime", SecretKey(key.p, key.q, (a, b * 3)), True),
    ):
        with pytest.raises(ProtocolError, match=says):
            bad.check(2048, subgroup)
    for orders in ((a,), (a, 1), (a, b, a)):
        with pytest.raises(ConfigError, match="two primes"):
            SecretKey(key.p, key.q, orders)


@pytest.mark.parametrize("subgroup", [False, True])
@pytest.mark.parametrize("bits", [2048, 3072])
def test_generated_keys_are_sound(bits: int, subgroup: bool) -> None:
    key = pair(bits=bits, subgroup=subgroup)
    key.check(bits, subgroup)
    assert SecretKey.from_bytes(key.to_bytes()) == key
    assert key.public.bits == bits
    assert len({key.p, key.q, *key.orders}) == (4 if subgroup else 2)
    for prime, order in zip((key.p, key.q), key.orders, strict=subgroup):
        assert order.bit_length() == 2 * BatchCrypt(bits).security
        assert gmpy2.is_prime(order, 50)
        assert (prime - 1) % order == 0
    for prime, other in ((key.p, key.q), (key.q, key.p)):
        assert prime.bit_length() == bits // 2
        assert prime >> (bits // 2 - 2) == 3
        assert gmpy2.is_prime(prime, 50)
        assert prime % 4 == 3
        assert gmpy2.legendre(key.h, prime) == -1
        assert gmpy2.legendre(-key.h, prime) == 1
        assert prime % other
    assert math.gcd(key.p - 1, key.q - 1) == 2
    assert math.gcd(key.public.n, (key.p - 1) * (key.q - 1)) == 1
    # h is hashed from n, and of no small order.
    assert math.gcd(pow(key.h, 2, key.public.n) - 1, key.public.n) == 1


def test_random_primes_are_spread_over_their_range() -> None:
    primes = {random_blum_prime(64, secrets.token_bytes) for _ in range(200)}
    assert all(p >> 62 == 3 and p % 4 == 3 and gmpy2.is_prime(p) for p in primes)
    assert len(primes) == 200
    assert len({p >> 20 & 0xFF for p in primes}) > 90


def prime(bits: int, fits: Callable[[int], object]) -> int:
    while True:
        p = secrets.randbits(bits) | 3 << (bits - 2) | 1
        if fits(p) and gmpy2.is_prime(p):
            return p


def blum(p: int) -> bool:
    return p % 4 == 3


def test_unsound_keys_are_refused_by_name() -> None:
    p, q = pair().p, pair().q
    related = prime(1024, lambda x: blum(x) and x % 3 == 1), prime(1024, lambda x: x % 12 == 7)
    near = gmpy2.next_prime(p)
    while not blum(near):
        near = gmpy2.next_prime(near)
    for says, bad, bits in (
        ("2048 bits, the terms say 3072", pair(), 3072),
        ("not 3 modulo 4", SecretKey(prime(1024, lambda x: x % 4 == 1), q), 2048),
        ("not prime", SecretKey(p + 4, q), 2048),
        ("of one length", SecretKey(prime(1000, blum), prime(1048, blum)), 2048),
        ("too close", SecretKey(p, int(near)), 2048),
        ("related", SecretKey(*related), 2048),
    ):
        with pytest.raises(ProtocolError, match=says) as caught:
            bad.check(bits)
        assert str(p) not in str(caught.value)
    with pytest.raises(ConfigError, match="must differ"):
        SecretKey(p, p)
    for number in (0, 4, -7, 14):
        with pytest.raises(ConfigError):
            PublicKey(number)
    for one, two in ((4, 7), (7, 4), (-3, -5), (True, 7), (7, 1)):
        with pytest.raises(ConfigError, match="odd primes"):
            SecretKey(one, two)


@pytest.mark.parametrize("bits", [0, 512, 1024, 3071, True, 2048.0, "2048"])
def test_lengths_that_are_not_built(bits: object) -> None:
    for build in (SecretKey.generate, lambda bits: BatchCrypt(key_bits=bits)):
        with pytest.raises(ConfigError, match=r"3072 has 128 bits|must be an integer"):
            build(bits)  # type: ignore[arg-type]


def test_a_key_of_another_scheme_is_refused() -> None:
    other = BatchCryptAdder(BatchCrypt(key_bits=2048), 3, 16, public=pair(1).public)
    for role in (other.opener, other.sealer):
        with pytest.raises(ConfigError, match="does not belong"):
            role(Secrets(KEY, 0, pair().to_bytes()))
    with pytest.raises(ProtocolError, match="2048 bits"):
        BatchCryptAdder(BatchCrypt(key_bits=3072), 3, 16, public=pair().public)
    with pytest.raises(ConfigError, match="no public key"):
        BatchCrypt(key_bits=2048).adder(3, 16).add(None, sealer().encrypt(whole([]), SLOT))


# --- powers ---


def test_powers_are_never_used_twice() -> None:
    """Equal values, equal random bytes asked for anew: no two ciphertexts share a power r^n."""
    made, values = sealer(), whole(np.zeros(330, np.int32))
    slots = [SLOT, OTHER_SLOTS["round"], OTHER_SLOTS["attempt"]]
    for slot in slots[:2]:
        made.prepare(slot, 330)
    rows = [made.encrypt(values, slot).data.reshape(-1, 512) for slot in slots]
    seen = [row.tobytes() for part in rows for row in part]
    assert len(set(seen)) == len(seen)
    assert not made._ready


def test_a_fault_stops_the_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ciphertext that is right modulo one prime alone would factor n."""
    from flhe.schemes.batchcrypt.residues import _Half

    honest = _Half.powers
    monkeypatch.setattr(
        _Half, "powers", lambda self, rows, threads: [u + 1 for u in honest(self, rows, threads)]
    )
    with pytest.raises(FlheError, match="fault"):
        sealer(1).encrypt(whole(np.ones(200, np.int32)), SLOT)


P, Q = 2**61 - 1, 2**89 - 1
N = P * Q
PRIMES = [3, 7, 11, 13, 293, 433, 10_007, 65_537, 2**31 - 1, 2**61 - 1, 2**89 - 1]


def textbook(n: int, m: int, r: int) -> int:
    return (1 + m * n) * pow(r, n, n * n) % (n * n)


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
    assert not any(str(number) in repr(one) + repr(one._join) for number in (P, Q, N))


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
def test_keys_come_from_the_random_source_alone(generate: Callable[..., Any]) -> None:
    one, other = generate(random=counting()), generate(random=counting())
    assert one.to_bytes() == other.to_bytes()
    assert generate.func(generate.args[0]).to_bytes() != one.to_bytes()  # type: ignore[attr-defined]


def test_no_key_shows_itself() -> None:
    assert repr(SealSecret.generate("4096")) == "SealSecret(ring='4096')"
    assert repr(pair()) == "SecretKey(public=PublicKey())"
