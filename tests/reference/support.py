"""Supports, a second time: strings of zeros and ones."""

from __future__ import annotations

import hashlib

from tests.reference.wire import cbor


def octets(bits: str) -> bytes:
    """Eight characters a byte, the first its lowest bit; the last byte's unused bits are zero."""
    return bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))


def characters(data: bytes) -> str:
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def start(kind: int, count: int) -> bytes:
    return bytes([kind, *count.to_bytes(4, "big")])


def bitmap(coords: list[int], length: int) -> bytes:
    members = set(coords)
    return start(0, len(coords)) + octets("".join("01"[d in members] for d in range(length)))


def skipped(coords: list[int]) -> list[int]:
    return [here - before - 1 for before, here in zip([-1, *coords], coords, strict=False)]


def rice(coords: list[int], p: int) -> bytes:
    def code(gap: int) -> str:
        zeros, low = gap >> p, gap % (1 << p)
        return "0" * zeros + "1" + "".join(str(low >> i & 1) for i in range(p))

    return start(1 + p, len(coords)) + octets("".join(map(code, skipped(coords))))


def coded(coords: list[int], length: int) -> bytes:
    """The one encoding: the shorter of the bitmap and the best Rice code; the bitmap where they tie."""
    costs = [sum(gap // 2**p + 1 + p for gap in skipped(coords)) for p in range(32)]
    best = costs.index(min(costs))
    if -(-length // 8) <= -(-costs[best] // 8):
        return bitmap(coords, length)
    return rice(coords, best)


def digest(data: bytes, length: int) -> bytes:
    return hashlib.sha256(cbor(["flhe/v1/support", length, data])).digest()


def rice_read(bits: str, p: int, count: int) -> list[int]:
    """So many coordinates."""
    coords: list[int] = []
    for _ in range(count):
        zeros, _one, bits = bits.partition("1")
        low, bits = bits[:p], bits[p:]
        following = coords[-1] + 1 if coords else 0
        coords.append(following + len(zeros) * 2**p + int(low[::-1] or "0", 2))
    return coords


def coordinates(data: bytes) -> list[int]:
    """The set that an encoding is of."""
    bits = characters(data[5:])
    if data[0] == 0:
        return [d for d, bit in enumerate(bits) if bit == "1"]
    return rice_read(bits, data[0] - 1, int.from_bytes(data[1:5], "big"))
