"""Keystreams for tests: words that are written down, and AES by another library."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from Crypto.Cipher import AES
from numpy.typing import NDArray

from flhe.math.prg import AesCtr, Stream


class Scripted:
    """Words of 64 bits, a function of stream and place; it keeps which streams were asked for."""

    def __init__(self, word: Callable[[int, int], int]) -> None:
        self.word = word
        self.asked: set[int] = set()

    def stream(self, key: bytes, number: int, block: int = 0) -> Stream:
        self.asked.add(number)
        return _Stream(lambda i: self.word(number, i), 2 * block)


class _Stream:
    def __init__(self, word: Callable[[int], int], at: int) -> None:
        self.word, self.at = word, at

    def into(self, out: NDArray[np.uint8], nbytes: int) -> None:
        assert nbytes % 8 == 0
        assert out.size >= nbytes + 16
        count = nbytes // 8
        made = np.array([self.word(self.at + i) for i in range(count)], np.uint64)
        out[:nbytes] = made.view(np.uint8)
        self.at += count


class PyCryptodome:
    """AES-256-CTR as `AesCtr` has it, by PyCryptodome, which FLASHE's paper uses (Sec. 5.2)."""

    def stream(self, key: bytes, number: int, block: int = 0) -> Stream:
        return _Cipher(key, number, block)


class _Cipher:
    def __init__(self, key: bytes, number: int, block: int) -> None:
        nonce = number.to_bytes(8, "big")
        self.cipher = AES.new(key, AES.MODE_CTR, nonce=nonce, initial_value=block)

    def into(self, out: NDArray[np.uint8], nbytes: int) -> None:
        self.cipher.encrypt(bytes(nbytes), output=out.data[:nbytes])


BACKENDS = {"openssl": AesCtr.stream, "pycryptodome": PyCryptodome.stream}
