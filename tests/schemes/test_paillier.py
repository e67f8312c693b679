"""Paillier: other libraries, unsound keys, powers that are verified and never used twice."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable

import gmpy2
import numpy as np
import phe
import pytest

from flhe.errors import ConfigError, FlheError, ProtocolError
from flhe.math.bigint import from_rows, random_blum_prime, to_rows
from flhe.schemes.base import Secrets
from flhe.schemes.batchcrypt import residue_pool
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptOpener, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.sealed import Sealed
from tests.laws import KEY, OTHER_SLOTS, SLOT, whole


@functools.cache
def pair(number: int = 0) -> SecretKey:
    return SecretKey.generate(2048)


SCHEME = BatchCryptAdder(BatchCrypt(key_bits=2048), 3, 16, public=pair().public)


def sealer(rank: int = 0, threads: int = 1) -> BatchCryptSealer:
    return BatchCryptSealer(SCHEME, pair(), rank, threads=threads)


def opened(sealed: Sealed, threads: int = 1) -> list[int]:
    return BatchCryptOpener(SCHEME, pair(), threads).decrypt(sealed).tolist()


# --- python-paillier ---


def test_python_paillier_decrypts_what_we_encrypt() -> None:
    """Sums at 2048 bits; it knows p and q, and nothing of our code."""
    n, total = pair().public.n, None
    theirs = phe.PaillierPrivateKey(phe.PaillierPublicKey(n), pair().p, pair().q)
    vectors = np.random.default_rng(3).integers(-32767, 32768, (3, 300)).astype(np.int32)
    for rank, values in enumerate(vectors):
        total = SCHEME.add(total, sealer(rank).encrypt(whole(values), SLOT))
    assert total is not None
    found = [theirs.raw_decrypt(int(c)) for c in from_rows(total.data.reshape(-1, 512))]
    signed = [gmpy2.mpz(m - n if m > n // 2 else m) for m in found]
    assert np.array_equal(SCHEME.batch.digits(signed, 300, 3), vectors.sum(axis=0))


def test_we_decrypt_what_python_paillier_encrypts() -> None:
    n, values = pair().public.n, np.arange(-150, 150, dtype=np.int32)
    theirs = phe.PaillierPublicKey(n)
    rows = [theirs.raw_encrypt(int(m) % n) for m in SCHEME.batch.pack(values)]
    data = to_rows(map(gmpy2.mpz, rows), 512, len(rows)).reshape(-1)
    sealed = Sealed("batchcrypt", SLOT, (0,), 300, data)
    assert opened(sealed) == values.tolist()
    both = SCHEME.add(sealed, sealer(1).encrypt(whole(values), SLOT))
    assert opened(both) == (2 * values).tolist()


# --- keys ---


@pytest.mark.parametrize("bits", [2048, 3072])
def test_generated_keys_are_sound(bits: int) -> None:
    key = SecretKey.generate(bits)
    key.check(bits)
    assert key.public.bits == bits
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
    near = int(gmpy2.next_prime(p))
    while not blum(near):
        near = int(gmpy2.next_prime(near))
    for says, bad, bits in (
        ("2048 bits, the terms say 3072", pair(), 3072),
        ("not 3 modulo 4", SecretKey(prime(1024, lambda x: x % 4 == 1), q), 2048),
        ("not prime", SecretKey(p + 4, q), 2048),
        ("of one length", SecretKey(prime(1000, blum), prime(1048, blum)), 2048),
        ("too close", SecretKey(p, near), 2048),
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
    made, values = sealer(), whole(np.zeros(970, np.int32))
    slots = [SLOT, OTHER_SLOTS["round"], OTHER_SLOTS["attempt"]]
    for slot in slots[:2]:
        made.prepare(slot, 970)
    rows = [made.encrypt(values, slot).data.reshape(-1, 512) for slot in slots]
    seen = [row.tobytes() for part in rows for row in part]
    assert len(set(seen)) == len(seen)
    assert not made._ready


def test_powers_from_other_processes_open_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residue_pool, "SMALL", 4)
    key, values = pair(), np.arange(-400, 400, dtype=np.int32)
    ahead = sealer(threads=2)
    ahead.prepare(SLOT, values.size)
    (powers,) = ahead._ready.values()
    assert len(powers) == SCHEME.nbytes(values.size) // 512 > 4
    order, square = (key.p - 1) * (key.q - 1), key.public.n**2
    assert all(gmpy2.powmod(u, order, square) == 1 for u in powers)  # n-th residues, all of them
    sealed = ahead.encrypt(whole(values), SLOT)
    assert opened(sealed) == values.tolist()
    total = SCHEME.add(sealed, sealer(1, threads=2).encrypt(whole(values), SLOT))
    assert opened(total, threads=2) == (2 * values).tolist()


def test_a_fault_stops_the_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ciphertext that is right modulo one prime alone would factor n."""
    from flhe.schemes.batchcrypt.residues import _Half

    honest = _Half.powers
    monkeypatch.setattr(
        _Half, "powers", lambda self, rows, threads: [u + 1 for u in honest(self, rows, threads)]
    )
    with pytest.raises(FlheError, match="fault"):
        sealer(1).encrypt(whole(np.ones(200, np.int32)), SLOT)
