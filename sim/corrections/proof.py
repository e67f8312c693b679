"""What a correction of a paper is made of: what it says, what is wrong, and something that runs.

A proof takes no input and draws nothing at random: it says the same on every machine, so that
docs/corrections.md can quote it, and a test can hold the page to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Paper = Literal["FLASHE", "ESAFL", "BatchCrypt", "FedML-HE", "SASH"]
Verdict = Literal["breaks secrecy", "wrong result", "wrong figure", "left open"]

VERDICTS: dict[Verdict, str] = {
    "breaks secrecy": "somebody reads what the paper says is hidden",
    "wrong result": "what comes out is not what should",
    "wrong figure": "a number, or what is said of it, does not hold",
    "left open": "the text does not say it, and it matters",
}
"""What each verdict means."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one run of a proof found.

    Parameters
    ----------
    text : str
        In words, with the numbers.
    shown : bool
        Whether that is what the correction claims.
    """

    text: str
    shown: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that a paper gets wrong or leaves open.

    Parameters
    ----------
    name : str
        Under which it is run.
    paper : Paper
        Whose.
    where : str
        Section, equation or table.
    claim : str
        What stands there, in a few words.
    wrong : str
        What is wrong with it.
    instead : str
        What flhe does.
    module : str
        Where in the project, a path or more.
    verdict : Verdict
        See `VERDICTS`.
    run : callable
        Shows it, within a second or so.
    more : str
        A command that shows more of it, or shows it in full.
    """

    name: str
    paper: Paper
    where: str
    claim: str
    wrong: str
    instead: str
    module: str
    verdict: Verdict
    run: Callable[[], Found]
    more: str = ""

    @property
    def command(self) -> str:
        """What prints it."""
        return f"python -m flhe.sim.corrections {self.name}"


class Fixed:
    """Bytes that are always the same, where a scheme takes random ones; they guard nothing.

    Parameters
    ----------
    seed : int
        Which bytes.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)  # keys of made-up clients, in proofs only

    def __call__(self, count: int) -> bytes:
        """`count` bytes."""
        return self._rng.bytes(count)
