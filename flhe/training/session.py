"""Session: one member's rounds within one epoch, as steps without Flower.

What a member knows of a round is in `facts`, what it encrypts in `sending`, what all open in `opening`.
"""

from __future__ import annotations

from flhe.training.opening import Opening
from flhe.training.sending import Sending


class Session(Sending, Opening):
    """One member's side of the rounds of one epoch; for its parameters see `Facts`."""

    __slots__ = ()
