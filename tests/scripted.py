"""Randomness for tests: words and draws that are written down, and AES by another library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from Crypto.Cipher import AES
from numpy.typing import NDArray

from flhe.math import keystream
from flhe.math.keystream import Stream
from flhe.math.prg import Rounding


def streams(patch: pytest.MonkeyPatch, made: Callable[[bytes, int, int], Any]) -> None:
    """Have `made` make what streams encrypt zeros with, of key, number and block."""

    def start(self: Stream, key: bytes, number: int, block: int = 0) -> None:
        self._encryptor = made(key, number, block)

    patch.setattr(Stream, "__init__", start)
    patch.setattr(keystream, "fastest", lambda: keystream.OpenSsl)


def scripted(patch: pytest.MonkeyPatch, word: Callable[[int, int], int]) -> set[int]:
    """Words of 64 bits, a function of stream and place; gives which streams were asked for."""
    asked: set[int] = set()

    def made(_key: bytes, number: int, block: int) -> _Words:
        asked.add(number)
        return _Words(lambda i: word(number, i), 2 * block)

    streams(patch, made)
    return asked


class _Words:
    def __init__(self, word: Callable[[int], int], at: int) -> None:
        self.word, self.at = word, at

    def update_into(self, zeros: memoryview, out: memoryview) -> None:
        nbytes = len(zeros)
        assert nbytes % 8 == 0
        assert out.nbytes >= nbytes + 16
        made = [self.word(self.at + i) for i in range(nbytes // 8)]
        np.frombuffer(out, np.uint8)[:nbytes] = np.array(made, np.uint64).view(np.uint8)
        self.at += len(made)


class PyCryptodome:
    """AES-256-CTR as `Stream` has it, by PyCryptodome, which FLASHE's paper uses (Sec. 5.2)."""

    def __init__(self, key: bytes, number: int, block: int) -> None:
        nonce = number.to_bytes(8, "big")
        self.cipher = AES.new(key, AES.MODE_CTR, nonce=nonce, initial_value=block)

    def update_into(self, zeros: memoryview, out: memoryview) -> None:
        self.cipher.encrypt(zeros, output=out[: len(zeros)])


class Given(Rounding):
    """Rounding values that are written down."""

    def __init__(self, draws: Sequence[int] | NDArray[np.uint16]) -> None:
        self._draws = draws

    def next(self, count: int) -> NDArray[np.uint16]:
        taken, self._draws = self._draws[:count], self._draws[count:]
        return np.array(taken, np.uint16)
