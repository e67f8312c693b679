"""Paillier decryption with p and q: half-length powers, joined and verified.

    m_p = L_p(c^e mod p^2) h_p mod p,   L_p(x) = (x - 1) / p,   h_p = L_p(g^e mod p^2)^-1
    m   = m_p + p ((m_q - m_p) p^-1 mod q)

e is p - 1; in the subgroup variant it is the order of r^n modulo p^2, a sixth as long (Sec. 6). With
g = n + 1, g^e is 1 + e n modulo p^2, so h_p = (e q)^-1 mod p.

Results are verified; `fault` gives the reason. c^e must be 1 modulo p: by Fermat for p - 1, and for
an order because c hides its plaintext with a member of the subgroup. The division by p checks this
at no cost, and a wrong power passes with odds of 1 / p. For faults that it misses,
`flhe.schemes.batchcrypt.powers` verifies. The joined m is put back: -q m must be L_p(x) modulo p,
and -p m must be L_q(x) modulo q. Faults before the powers are detected only by the tags of the sum.

GMP's `powmod` is not constant-time: run nothing on the machine that could time this process to the
microsecond. A server times whole rounds only.

Source: Paillier (EUROCRYPT 1999), Sec. 6 (fast decryption), Sec. 7 (Chinese remaindering).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from flhe.errors import ProtocolError
from flhe.math.bigint import Big, gmpy
from flhe.math.threads import run_all
from flhe.schemes.batchcrypt.powers import fault, powmod_all


class Join:
    """The number below a b that is x modulo a and y modulo b (Garner), for coprime a and b."""

    __slots__ = ("_a", "_b", "_inverse")

    def __init__(self, a: Big, b: Big) -> None:
        self._a, self._b = a, b
        self._inverse = gmpy().invert(a, b)

    def __call__(self, x: Big, y: Big) -> Big:
        """Join x in [0, a) and y in [0, b); not verified."""
        return x + self._a * ((y - x) * self._inverse % self._b)


class Crt:
    """Decryption with the two secret primes, which `SecretKey.check` has passed.

    `orders` are those of the subgroup modulo p^2 and q^2; without, exponents are p - 1 and q - 1.
    """

    __slots__ = ("_exponents", "_join", "_primes", "_short")

    def __init__(self, p: int, q: int, orders: Sequence[int] = ()) -> None:
        g = gmpy()
        p, q = g.mpz(p), g.mpz(q)
        self._short = bool(orders)
        self._exponents = [g.mpz(e) for e in orders] or [p - 1, q - 1]
        # For each prime: the prime, h_p, and the factor that undoes it.
        halves = zip((p, q), (q, p), self._exponents, strict=True)
        self._primes = [(a, g.invert(e * b, a), e * b % a) for a, b, e in halves]
        self._join = Join(p, q)

    def decrypt(self, ciphertexts: Sequence[Big], threads: int = 1) -> list[Big]:
        """Decrypt numbers in (0, n^2), coprime to n, into [0, n), in order.

        Raises FaultError and returns none if any of them fails its verification; ProtocolError: one
        is no ciphertext under a key with `orders`. A multiple of p or q fails too, but
        `PublicKey.check_ciphertexts` refuses it earlier.
        """
        each = -(-threads // 2)  # both halves take equal time and need not wait for each other
        halves = [functools.partial(self._logs, half, ciphertexts, each) for half in (0, 1)]
        logs = run_all(halves, threads)
        return [self._open(x, y) for x, y in zip(*logs, strict=True)]

    def _logs(self, half: int, numbers: Sequence[Big], threads: int) -> list[Big]:
        """Return L_p(c^e mod p^2) of each, in [0, p)."""
        p = self._primes[half][0]
        divide = gmpy().f_divmod
        logs = []
        for power in powmod_all(numbers, self._exponents[half], p, threads):
            log, one = divide(power, p)
            if one != 1 and self._short:  # the text holds no number
                raise ProtocolError(
                    "sum refused: a ciphertext hides its plaintext outside the key's subgroup: it was "
                    "changed on its way, or this machine's memory or processor is at fault"
                )
            if one != 1:
                raise fault()
            logs.append(log)
        return logs

    def _open(self, log_p: Big, log_q: Big) -> Big:
        (p, h_p, back_p), (q, h_q, back_q) = self._primes
        m = self._join(log_p * h_p % p, log_q * h_q % q)
        if (m * back_p - log_p) % p or (m * back_q - log_q) % q:
            raise fault()
        return m
