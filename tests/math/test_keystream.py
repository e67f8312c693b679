"""Keystreams: AES by OpenSSL and by vector instructions are the same, and NIST's."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.errors import TypingError
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError
from flhe.math import aes_kernels, keystream
from flhe.math.keystream import BLOCK, CHUNK, FIRST
from flhe.math.prg import FieldElements
from tests.math.keystreams import KINDS

NUMBERS = st.lists(st.integers(0, (1 << 64) - 1), max_size=3)


def made(
    kind: Any, key: bytes, count: int, block: int, added: Any, taken: Any, lane: Any = np.uint32
) -> NDArray[Any]:
    out = np.full(count + BLOCK // np.dtype(lane).itemsize, 7, lane)
    kind(key).into(out, count, block, (added, taken))
    return out[:count]


@pytest.mark.parametrize("kind", KINDS)
def test_nists_vector(kind: Any) -> None:
    """SP 800-38A, F.5.5: CTR-AES256.Encrypt; a keystream is plaintext xor ciphertext."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    number, block = 0xF0F1F2F3F4F5F6F7, 0xF8F9FAFBFCFDFEFF
    found = made(kind, key, 8, block, [number], [], np.uint64)
    expected = np.frombuffer(plain, np.uint64) ^ np.frombuffer(cipher, np.uint64)
    assert np.array_equal(found, expected)


@pytest.mark.skipif(not aes_kernels.able(), reason="no vector AES here")
@given(
    key=st.binary(min_size=32, max_size=32),
    count=st.integers(0, 300) | st.sampled_from([CHUNK // 8, CHUNK // 4 + 5]),
    block=st.integers(0, 1 << 62),
    added=NUMBERS,
    taken=NUMBERS,
    lane=st.sampled_from([np.uint32, np.uint64]),
)
def test_both_make_the_same_sums(
    key: bytes, count: int, block: int, added: list[int], taken: list[int], lane: Any
) -> None:
    ours, theirs = (
        made(kind, key, count, block, added, taken, lane)
        for kind in (keystream.Vaes, keystream.OpenSsl)
    )
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_those_of_the_whole(kind: Any) -> None:
    """Also if the pieces are read by one object, in any order."""
    key, cuts = bytes(range(32)), [0, 4, 1000, 1004, CHUNK // 2, CHUNK]
    whole = made(kind, key, CHUNK, 9, (5,), (6,))
    stream, held = kind(key), np.empty(CHUNK + BLOCK // 4, np.uint32)
    for start, stop in [*itertools.pairwise(cuts), (4, 7), (8, 1000)]:
        stream.into(held, stop - start, 9 + start // 4, ((5,), (6,)))
        assert np.array_equal(held[: stop - start], whole[start:stop])


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="31 bytes"):
        keystream.keystream(bytes(31))


@pytest.mark.parametrize("able", [True, False])
def test_what_is_chosen(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aes_kernels, "able", lambda: able)
    monkeypatch.setattr(keystream, "Vaes", type("Same", (keystream.OpenSsl,), {}))
    chosen = keystream._fastest.__wrapped__()
    assert chosen is (keystream.Vaes if able else keystream.OpenSsl)


def test_a_processor_whose_aes_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(keystream.OpenSsl):
        def into(self, out: Any, count: int, *where: Any) -> None:
            super().into(out, count, *where)
            out[count - 1] ^= 1

    monkeypatch.setattr(aes_kernels, "able", lambda: True)
    monkeypatch.setattr(keystream, "Vaes", Broken)
    with pytest.raises(FlheError, match="differ"):
        keystream._fastest.__wrapped__()


@pytest.mark.parametrize("kind", KINDS)
@given(
    coords=st.sets(st.integers(0, 2000), max_size=40)
    | st.sets(st.integers(CHUNK // 4 - 9, CHUNK // 4 + 9) | st.integers(CHUNK - 99, CHUNK)),
    added=NUMBERS,
    taken=NUMBERS,
    lane=st.sampled_from([np.uint32, np.uint64]),
)
def test_lanes_one_by_one_are_those_of_the_whole(
    kind: Any, coords: set[int], added: list[int], taken: list[int], lane: Any
) -> None:
    key, places = bytes(range(32)), np.array(sorted(coords), np.uint32)
    whole = made(kind, key, max(coords, default=0) + 1, 0, added, taken, lane)
    out = np.empty(places.size, lane)
    kind(key).at(out, places, (added, taken))
    assert np.array_equal(out, whole[places])


def test_short_streams_load_no_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that only answers a stage would wait for numba."""
    monkeypatch.setattr(keystream, "fastest", lambda: pytest.fail("asked for"))
    assert type(keystream.keystream(bytes(32), keystream.SHORT - 1)) is keystream.OpenSsl
    FieldElements(bytes(32)).blocks(0, 1, 4096)  # a derived share


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_that_do_not_fit_are_refused(kind: Any) -> None:
    stream = kind(bytes(32))
    with pytest.raises((ConfigError, ValueError)):
        stream.into(np.empty(100, np.uint32), 200, 0, FIRST)
    with pytest.raises((ValueError, TypingError)):  # compiled loops take addresses
        stream.into(np.empty(400, np.uint32)[::2], 128, 0, FIRST)


@pytest.mark.parametrize("kind", KINDS)
def test_a_keystream_is_not_copied_and_tells_no_key(kind: Any) -> None:
    key = bytes(range(32))
    stream = kind(key)
    assert key.hex() not in repr(stream)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="has a key"):
            act(stream)
