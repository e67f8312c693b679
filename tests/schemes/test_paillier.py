"""Paillier as keys and as a scheme: other libraries, malformed keys, what must never be used twice."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import secrets
from typing import Any

import gmpy2
import numpy as np
import phe
import pytest

from flhe.coding.base import Plain
from flhe.errors import ConfigError, FlheError, ProtocolError, ReuseError
from flhe.math.bigint import from_rows, random_blum_prime, to_rows
from flhe.schemes.batchcrypt import residue_pool
from flhe.schemes.batchcrypt.keys import KEY_BITS, PublicKey, SecretKey, check_key_bits
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.canonical import dumps, loads

AT = Slot(5, bytes(32), bytes(16), 2, 1, bytes(32), bytes(32))
NOTHING = np.empty(0, np.int32)
GROUP_KEY = bytes(range(32))


@functools.cache
def pair(number: int = 0) -> SecretKey:
    return SecretKey.generate(2048)


def sum_of(scheme: Paillier, vectors: list[np.ndarray], key: SecretKey) -> Sealed:
    total = None
    for rank, values in enumerate(vectors):
        part = PaillierSealer(scheme, key, GROUP_KEY, rank).encrypt(Plain(values, NOTHING), AT)
        total = scheme.add(total, part)
    assert total is not None
    return total


# --- python-paillier ---


def test_python_paillier_decrypts_what_we_encrypt() -> None:
    """At 2048 bits, single ciphertexts and sums; it knows p and q, and nothing of our code."""
    key = pair()
    public = phe.PaillierPublicKey(key.public.n)
    theirs = phe.PaillierPrivateKey(public, key.p, key.q)
    scheme = Paillier(3, 16, 2048, key.public)
    rng = np.random.default_rng(3)
    vectors = [rng.integers(-32767, 32768, 300).astype(np.int32) for _ in range(3)]
    total = sum_of(scheme, vectors, key)
    n = key.public.n
    opened = [theirs.raw_decrypt(int(c)) for c in from_rows(total.data.reshape(-1, 512))]
    signed = [gmpy2.mpz(m - n if m > n // 2 else m) for m in opened]
    low, _ = scheme.batch.lower(signed)
    assert np.array_equal(scheme.batch.unpack(low, 300, 3), sum(vectors))


def test_we_decrypt_what_python_paillier_encrypts() -> None:
    key = pair()
    public = phe.PaillierPublicKey(key.public.n)
    scheme = Paillier(3, 16, 2048, key.public)
    values = np.arange(-150, 150, dtype=np.int32)
    plain = Plain(values, NOTHING)
    told = PaillierSealer(scheme, key, GROUP_KEY, 0).messages(plain, AT)
    rows = [public.raw_encrypt(int(m) % key.public.n) for m in told]
    data = to_rows(map(gmpy2.mpz, rows), 512, len(rows)).reshape(-1)
    theirs = Sealed("batchcrypt", AT, (0,), 300, data)
    assert PaillierOpener(scheme, key, GROUP_KEY).decrypt(theirs).tolist() == values.tolist()
    ours = PaillierSealer(scheme, key, GROUP_KEY, 1).encrypt(plain, AT)
    both = scheme.add(theirs, ours)
    assert PaillierOpener(scheme, key, GROUP_KEY).decrypt(both).tolist() == (2 * values).tolist()


# --- keys ---


@pytest.mark.parametrize("bits", sorted(KEY_BITS))
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


def test_keys_come_from_the_random_source_alone() -> None:
    def source() -> object:
        state = iter(range(10**9))
        return lambda n: b"".join(
            (next(state) * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") for _ in range(-(-n // 8))
        )[:n]

    one, other = (SecretKey.generate(2048, source()) for _ in range(2))  # type: ignore[arg-type]
    assert one == other
    assert SecretKey.generate(2048) != one


def test_random_primes_are_spread_over_their_range() -> None:
    bits = [random_blum_prime(64, secrets.token_bytes) for _ in range(200)]
    assert all(p >> 62 == 3 and p % 4 == 3 and gmpy2.is_prime(p) for p in bits)
    assert len(set(bits)) == 200
    middle = [p >> 20 & 0xFF for p in bits]
    assert len(set(middle)) > 90


def test_encodings_are_read_back_and_no_others() -> None:
    key = pair()
    assert SecretKey.from_bytes(key.to_bytes()) == key
    assert PublicKey.from_bytes(key.public.to_bytes()) == key.public
    for kind, data in ((SecretKey, key.to_bytes()), (PublicKey, key.public.to_bytes())):
        body = loads(data, 4096, "key")
        number = next(name for name in body if name in ("n", "p"))
        for change in (
            {number: b"\0" + body[number]},
            {number: b""},
            {number: body[number] + bytes(4096)},
            {number: b"\x02"},
        ):
            with pytest.raises(ProtocolError):
                kind.from_bytes(dumps(body | change))
    with pytest.raises(ProtocolError):
        SecretKey.from_bytes(key.public.to_bytes())


def a_prime(bits: int, residue: int) -> int:
    while True:
        p = secrets.randbits(bits) | 3 << (bits - 2) | 1
        if p % 4 == residue and gmpy2.is_prime(p):
            return p


def related(p: int) -> int:
    """A prime q with a common factor of p - 1 and q - 1 besides 2."""
    (factor,) = [f for f in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37) if (p - 1) % f == 0][:1] or [
        0
    ]
    while factor:
        q = a_prime(1024, 3)
        if (q - 1) % factor == 0:
            return q
    return 0


def test_unsound_keys_are_refused_by_name() -> None:
    key = pair()
    p, q = key.p, key.q

    def refused(says: str, bad: SecretKey, bits: int = 2048) -> None:
        with pytest.raises(ProtocolError, match=says) as caught:
            bad.check(bits)
        assert str(p) not in str(caught.value)

    refused("2048 bits, the terms say 3072", key, 3072)
    refused("not 3 modulo 4", SecretKey(a_prime(1024, 1), q))
    refused("not prime", SecretKey(p + 4, q))
    refused("of one length", SecretKey(a_prime(1000, 3), a_prime(1048, 3)))
    near = int(gmpy2.next_prime(p))
    while near % 4 != 3:
        near = int(gmpy2.next_prime(near))
    refused("too close", SecretKey(p, near))
    seed = p
    while not (other := related(seed)):
        seed = a_prime(1024, 3)
    refused("related", SecretKey(seed, other))
    with pytest.raises(ConfigError, match="must differ"):
        SecretKey(p, p)
    for bad in (0, 4, -7, 14):
        with pytest.raises(ConfigError):
            PublicKey(bad)
    for one, two in ((4, 7), (7, 4), (-3, -5), (True, 7), (7, 1)):
        with pytest.raises(ConfigError, match="odd primes"):
            SecretKey(one, two)


@pytest.mark.parametrize("bits", [0, 512, 1024, 3071, True, 2048.0, "2048"])
def test_lengths_that_are_not_built(bits: object) -> None:
    with pytest.raises(ConfigError, match="3072 has 128 bits of security"):
        check_key_bits(bits)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        SecretKey.generate(bits)  # type: ignore[arg-type]


def test_no_key_shows_itself() -> None:
    key = pair()
    shown = repr(key) + str(key) + repr(key.public)
    assert "<2048 bits>" in shown
    for number in (key.p, key.q, key.h):
        assert str(number)[:12] not in shown
        assert f"{number:x}"[:12] not in shown


def scheme_for(key: SecretKey, cohort: int = 3, bits: int = 16) -> Paillier:
    return Paillier(cohort, bits, 2048, key.public)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"cohort": 1}, "cohort must be"),
        ({"cohort": 1025}, "cohort must be"),
        ({"bits": 1}, "bits must be"),
        ({"bits": 33}, "bits must be"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Paillier(**{"cohort": 3, "bits": 16, "key_bits": 2048, **parameters})


def test_a_key_of_another_scheme_is_refused() -> None:
    other = Paillier(3, 16, 2048, pair(1).public)
    for role in (PaillierOpener, functools.partial(PaillierSealer, rank=0)):
        with pytest.raises(ConfigError, match="does not belong"):
            role(other, pair(), GROUP_KEY)
    with pytest.raises(ConfigError, match="2048 bits"):
        Paillier(3, 16, 3072, pair().public)
    part = PaillierSealer(scheme_for(pair()), pair(), GROUP_KEY, 0).encrypt(
        Plain(NOTHING, NOTHING), AT
    )
    with pytest.raises(ConfigError, match="no public key"):
        Paillier(3, 16, 2048).add(None, part)


def test_textbook_encryption() -> None:
    """Its vectors, and what is out of range."""
    path = pathlib.Path(__file__).parents[1] / "vectors/batchcrypt.json"
    for case in json.loads(path.read_text())["textbook"]:
        assert PublicKey(case["n"]).encrypt(case["m"], case["r"]) == case["c"]
    key = PublicKey(143)
    for message, r in ((143, 2), (-1, 2), (5, 0), (5, 143), (5, 11), (5, 26)):
        with pytest.raises(ConfigError):
            key.encrypt(message, r)


# --- the scheme ---


@pytest.mark.parametrize("key_bits", [2048, 3072])
def test_bytes_a_value(key_bits: int) -> None:
    """16 bits, nine clients: at most 5.8 bytes at 2048 bits, 5.6 at 3072."""
    scheme = Paillier(9, 16, key_bits)
    a_value = scheme.nbytes(1_250_000) / 1_250_000
    assert a_value <= {2048: 5.8, 3072: 5.6}[key_bits]


def test_powers_are_never_used_twice() -> None:
    """Equal values, equal random bytes asked for anew: no two ciphertexts share a power r^n."""
    key = pair()
    scheme = scheme_for(key)
    sealer = PaillierSealer(scheme, key, GROUP_KEY, 0)
    values = np.zeros(10 * 97, np.int32)
    slots = [dataclasses.replace(AT, round=r) for r in range(1, 4)]
    sealer.prepare(slots[0], values.size)
    sealer.prepare(slots[1], values.size)
    rows = [sealer.encrypt(Plain(values, NOTHING), slot).data.reshape(-1, 512) for slot in slots]
    seen = {row.tobytes() for part in rows for row in part}
    assert len(seen) == sum(len(part) for part in rows)
    assert not sealer._ready
    for slot in slots:
        with pytest.raises(ReuseError):
            sealer.encrypt(Plain(values, NOTHING), slot)


def test_powers_from_other_processes_open_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residue_pool, "SMALL", 4)
    key = pair()
    scheme = scheme_for(key)
    values = np.arange(-400, 400, dtype=np.int32)
    sealer = PaillierSealer(scheme, key, GROUP_KEY, 0, threads=2)
    sealer.prepare(AT, values.size)
    made = sealer._ready[AT, values.size]
    assert len(made) == scheme.nbytes(values.size) // 512 > 4
    order = (key.p - 1) * (key.q - 1)
    square = key.public.n**2
    assert all(gmpy2.powmod(u, order, square) == 1 for u in made)  # n-th residues, all of them
    ahead = sealer.encrypt(Plain(values, NOTHING), AT)
    assert PaillierOpener(scheme, key, GROUP_KEY).decrypt(ahead).tolist() == values.tolist()
    at_once = PaillierSealer(scheme, key, GROUP_KEY, 1, threads=2).encrypt(
        Plain(values, NOTHING), AT
    )
    total = scheme.add(ahead, at_once)
    assert (
        PaillierOpener(scheme, key, GROUP_KEY, 2).decrypt(total).tolist() == (2 * values).tolist()
    )


def test_a_fault_stops_the_ciphertext(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ciphertext that is right modulo one prime alone would factor n."""
    from flhe.schemes.batchcrypt.residues import _Half

    key = pair()
    honest = _Half.powers
    monkeypatch.setattr(
        _Half, "powers", lambda self, rows, threads: [u + 1 for u in honest(self, rows, threads)]
    )
    with pytest.raises(FlheError, match="fault"):
        PaillierSealer(scheme_for(key), key, GROUP_KEY, 1).encrypt(
            Plain(np.ones(200, np.int32), NOTHING), AT
        )


def test_a_base_that_hides_nothing_cannot_be_chosen() -> None:
    """h is hashed from n; it is the negative of a square, and not of small order."""
    for number in (0, 1):
        key = pair(number)
        n = key.public.n
        assert 1 < key.h < n - 1
        assert math.gcd(pow(key.h, 2, n) - 1, n) == 1
        assert [gmpy2.legendre(key.h, x) for x in (key.p, key.q)] == [-1, -1]
    assert pair(0).h % pair(1).public.n != pair(1).h
