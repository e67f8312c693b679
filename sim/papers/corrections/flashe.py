"""What FLASHE's text gets wrong or leaves open, shown on its own equations.

Source: Jiang, Wang, Liu, "FLASHE", arXiv 2109.00675.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flhe.math.prg import AesCtr
from flhe.wire.derive import hkdf
from flhe_lab.papers.corrections.proof import Found, shows

COUNT = 10_000
"""Coordinates of an update."""

Vector = NDArray[np.uint64]


def _update(seed: int, bits: int = 16, count: int = COUNT) -> Vector:
    """Quantized values 0 to 2^bits - 1 (Sec. 5.2)."""
    rng = np.random.default_rng(seed)  # test data; masks never come from here
    return rng.integers(0, 1 << bits, count, np.uint64)


def _mask(round_: int, j: int, count: int = COUNT) -> Vector:
    """F_k(i || j || d) for all d, 64 bits each, under a key that all clients share."""
    key = hkdf(bytes(range(32)), "sim/corrections-flashe", round_)
    out = np.empty(8 * count, np.uint8)
    AesCtr().stream(key, j).into(out, out.size)
    return out.view(np.uint64)


def _encrypt(m: Vector, round_: int, j: int, modulus: int, *, double: bool = True) -> Vector:
    """Eq. 1, modulo a power of two; or with the first mask alone (Sec. 3.6)."""
    masked = m + _mask(round_, j, m.size)
    if double:
        masked -= _mask(round_, j + 1, m.size)
    return masked % np.uint64(modulus)


@shows("flashe-headroom")
def _headroom() -> Found:
    cohort, bits = 10, 16
    updates = [_update(j, bits) for j in range(cohort)]
    exact = np.sum(updates, axis=0)
    off = []
    for modulus in (1 << bits, 1 << bits + (cohort - 1).bit_length()):
        parts = [_encrypt(m, 1, j, modulus) for j, m in enumerate(updates)]
        # All send: what is left of the masks is the first one's and the last one's (Eq. 3).
        opened = np.sum(parts, axis=0) + _mask(1, cohort) - _mask(1, 0)
        off.append(float(np.mean(opened % np.uint64(modulus) != exact)))
    return Found(
        f"{cohort} clients, {bits} bits: modulo 2^16 {off[0]:.1%} of the sums are wrong, modulo "
        f"2^20 {off[1]:.0%}.",
        off[0] > 0.99 and off[1] == 0,
    )


@shows("flashe-retry")
def _again() -> Found:
    first, second, modulus = _update(1), _update(2), 1 << 20
    seen = (_encrypt(first, 7, 3, modulus) - _encrypt(second, 7, 3, modulus)) % np.uint64(modulus)
    share = float(np.mean(seen == (first - second) % np.uint64(modulus)))
    return Found(
        "Client 3 sends two updates in round 7: the difference of the ciphertexts is that of the "
        f"updates in {share:.0%} of {COUNT:,} coordinates.",
        share == 1,
    )


@shows("flashe-both-modes")
def _both_modes() -> Found:
    modulus, m = 1 << 20, _update(1)
    single = _encrypt(m, 7, 3, modulus, double=False)
    mask = single - _encrypt(m, 7, 3, modulus)
    victim = _update(2)
    read = (_encrypt(victim, 7, 4, modulus, double=False) - mask) % np.uint64(modulus)
    share = float(np.mean(read == victim))
    return Found(
        "Client 3 is asked for both: the difference is client 4's mask. Client 4's single-masked "
        f"update is read in {share:.0%} of the coordinates.",
        share == 1,
    )


@shows("flashe-identifiers")
def _identifiers() -> Found:
    rounds, clients, coordinates = 20, 11, 100
    seen: dict[str, tuple[int, int, int]] = {}
    clashes, example = 0, ""
    for i in range(1, rounds + 1):
        for j in range(clients + 1):
            for d in range(1, coordinates + 1):
                name = f"{i}{j}{d}"
                if name in seen:
                    clashes += 1
                    example = example or f"{seen[name]} and {(i, j, d)} are both {name}"
                seen.setdefault(name, (i, j, d))
    return Found(
        f"Written one after the other in decimals, {clashes:,} of "
        f"{rounds * (clients + 1) * coordinates:,} identifiers have been used before: {example}.",
        clashes > 0,
    )


@shows("flashe-dealt-key")
def _dealt() -> Found:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce, key = bytes(12), hkdf(b"drawn by the leader", "sim/corrections-flashe")
    # A channel for each client; the server has an end of both.
    to_leader, to_client, pair = (ChaCha20Poly1305(bytes([n]) * 32) for n in (1, 2, 3))

    def relayed(letter: bytes) -> tuple[bytes, bytes]:
        # What the server takes out of the leader's channel, and what the client gets.
        seen = to_leader.decrypt(nonce, to_leader.encrypt(nonce, letter, None), None)
        return seen, to_client.decrypt(nonce, to_client.encrypt(nonce, seen, None), None)

    def opens(letter: bytes) -> bool:
        # Whether one of the server's two ends opens it.
        for end in (to_leader, to_client):
            try:
                end.decrypt(nonce, letter, None)
            except InvalidTag:
                continue
            return True
        return False

    seen, got = relayed(bytes(key))
    # Mended: sealed for the client, with a key of these two, before it goes into the channel.
    closed, arrived = relayed(pair.encrypt(nonce, bytes(key), None))
    hidden = bytes(key) not in closed and not opens(closed)
    return Found(
        "The leader sends the key into its channel; before the server can put it into the next "
        f"one, it holds {'the key' if seen == key else 'something else'} itself ({len(seen)} "
        "bytes). Sealed for the client first, it "
        f"{'stays closed' if hidden else 'opens'} to all that the server has.",
        seen == key == got and hidden and pair.decrypt(nonce, arrived, None) == key,
    )
