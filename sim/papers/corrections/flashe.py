"""What FLASHE's text gets wrong or leaves open, shown on its own equations.

Source: Jiang, Wang, Liu, "FLASHE", arXiv 2109.00675.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flhe.math.keystream import Stream
from flhe.wire.derive import hkdf
from flhe_lab.papers.corrections.proof import Found

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
    Stream(key, j).into(out, out.size)
    return out.view(np.uint64)


def _encrypt(m: Vector, round_: int, j: int, modulus: int, *, double: bool = True) -> Vector:
    """Eq. 1, modulo a power of two; or with the first mask alone (Sec. 3.6)."""
    masked = m + _mask(round_, j, m.size)
    if double:
        masked -= _mask(round_, j + 1, m.size)
    return masked % np.uint64(modulus)


def _flashe_headroom() -> Found:
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


def _flashe_retry() -> Found:
    first, second, modulus = _update(1), _update(2), 1 << 20
    seen = (_encrypt(first, 7, 3, modulus) - _encrypt(second, 7, 3, modulus)) % np.uint64(modulus)
    share = float(np.mean(seen == (first - second) % np.uint64(modulus)))
    return Found(
        "Client 3 sends two updates in round 7: the difference of the ciphertexts is that of the "
        f"updates in {share:.0%} of {COUNT:,} coordinates.",
        share == 1,
    )


def _flashe_both_modes() -> Found:
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


def _flashe_identifiers() -> Found:
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


def _flashe_dealt_key() -> Found:
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


# --- sparse updates, thresholds and dropouts: Sec. 3.6, 4 and 5.2 ---


def _flashe_signed_threshold() -> Found:
    rng = np.random.default_rng(5)  # test data
    update, share = rng.standard_normal(COUNT), 0.1
    threshold = np.sort(update)[-int(share * COUNT)]  # "s% largest in dw"
    printed = float(np.mean(np.abs(update) > threshold))
    by_size = float(np.mean(np.abs(update) >= np.sort(np.abs(update))[-int(share * COUNT)]))
    return Found(
        f"s = 10%, {COUNT:,} values of a bell around zero: as printed {printed:.0%} are sent, by "
        f"magnitude {by_size:.0%}.",
        printed > 1.9 * share and by_size == share,
    )


def _flashe_ties() -> Found:
    def run(above: Callable[[float, float], bool]) -> tuple[int, float]:
        residual, sent = 0.0, 0
        for _ in range(rounds):
            residual += 0.01
            threshold = residual  # the largest of a layer of one value
            if above(abs(residual), threshold):
                residual, sent = 0.0, sent + 1
        return sent, residual

    rounds = 100
    (sent, waits), (mended, left) = run(operator.gt), run(operator.ge)
    return Found(
        f"A layer of one value, or of equal ones: none is above the largest. In {rounds} rounds "
        f"it is sent {sent} times, and {waits:.2f} waits in the residual. Where what equals the "
        f"threshold is chosen too, it is sent {mended} times, and {left:.2f} waits.",
        sent == 0 and mended == rounds and left == 0,
    )


def _flashe_one_order() -> Found:
    length, keep = 10_000, 1_000
    rng = np.random.default_rng(6)  # test data
    support = rng.choice(length, keep, replace=False)
    # Most of what is large in one round is large in the next one too.
    later = np.concatenate([support[: keep * 8 // 10], rng.choice(length, keep * 2 // 10)])
    common = []
    orders = [rng.permutation(length) for _ in range(2)]  # what the clients' secret would give
    for first, second in (orders[:1] * 2, orders):
        seen = np.intersect1d(first[support], second[later])
        common.append(seen.size / keep)
    return Found(
        f"Two supports of one client, 80% alike: the server sees {common[0]:.0%} in common under "
        f"one order for both rounds, {common[1]:.0%} under two orders, where chance gives 10%.",
        common[0] > 0.75 and common[1] < 0.2,
    )


def _flashe_history() -> Found:
    from flhe.coding.aciq import ratio

    rng, shares = np.random.default_rng(7), []  # test data
    for cohort in (10, 100):
        updates = rng.standard_normal((cohort, 20_000))
        sigma = float(updates.mean(axis=0).std())
        shares.append([float(np.mean(np.abs(updates) > ratio(b) * sigma)) for b in (8, 16)])
    fitted = [float(np.mean(np.abs(updates) > ratio(b))) for b in (8, 16)]
    return Found(
        f"Independent updates: with the spread of their mean, {shares[0][0]:.0%} of all values "
        f"are clipped at 8 bits and {shares[0][1]:.0%} at 16 with 10 clients, {shares[1][0]:.0%} "
        f"and {shares[1][1]:.0%} with 100; with their own spread {max(fitted):.2%} at most.",
        shares[0][0] > 0.2 and shares[1][0] > 0.6 and max(fitted) < 1e-3,
    )


def _flashe_crossover() -> Found:
    from flhe_lab.tables.flashe_masks import crossover

    small = [n for n in range(2, 101) if crossover(n) < 0.3]
    at = {n: crossover(n) for n in (3, 5, 8, 80)}
    return Found(
        f"By Theorem 2 itself it is {at[3]:.2f} for 3 clients, {at[5]:.2f} for 5, {at[8]:.2f} for "
        f"8, and below 0.3 for all N up to {max(small)}; for the 80 of Sec. 6.5, where 0.4 is "
        f"reported, {at[80]:.2f}.",
        max(small) == 8 and at[3] < 1e-9 and at[80] > 0.47,
    )
