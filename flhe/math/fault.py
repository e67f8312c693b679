"""Results under a secret key that failed their verification.

Who sees what came out of one good half and one faulty half, modulo p and modulo q, knows a factor
of n: its difference from the right result is a multiple of the good prime (Boneh, DeMillo, Lipton,
"On the importance of checking cryptographic protocols for faults", EUROCRYPT 1997). So nothing
leaves unverified.
"""

from __future__ import annotations

from flhe.errors import FaultError


def fault() -> FaultError:
    """What to raise; its text has no number in it."""
    return FaultError(
        "arithmetic fault: a result under the secret key failed its verification and was withheld; "
        "an input that is no ciphertext, or this machine's memory or processor, is at fault"
    )
