"""What a correction of a paper is made of: what it says, what is wrong, and something that runs.

A proof takes no input and draws nothing at random: it says the same on every machine, so that
docs/corrections.md can quote it, and a test can hold the page to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np

from flhe.errors import ConfigError, FlheError
from flhe.wire.secret import Random
from flhe_lab.advise.toml_files import load_toml

Paper = Literal["FLASHE", "ESAFL", "BatchCrypt", "FedML-HE", "SASH"]
Verdict = Literal["breaks secrecy", "wrong result", "wrong figure", "left open"]

VERDICTS: dict[Verdict, str] = {
    "breaks secrecy": "somebody reads what the paper says is hidden",
    "wrong result": "what comes out is not what should",
    "wrong figure": "a number, or what is said of it, does not hold",
    "left open": "the text does not say it, and it matters",
}
"""What each verdict means."""

TEXTS = "corrections.toml"
MODULES = ("flashe", "esafl", "batchcrypt", "fedml", "sash", "tables")
"""Modules of this package that have proofs."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one run of a proof found."""

    text: str  # In words, with the numbers
    shown: bool  # Whether that is what the correction claims


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that a paper gets wrong or leaves open."""

    name: str  # Under which it is run
    paper: Paper  # Whose
    where: str  # Section, equation or table
    verdict: Verdict  # See `VERDICTS`
    claim: str  # What stands there, in a few words
    wrong: str  # What is wrong with it
    instead: str  # What flhe does
    module: str  # Where in the project, a path or more
    run: Callable[[], Found]  # Shows it, within a second or so
    more: str = ""  # A command that shows more of it, or shows it in full

    def found(self) -> Found:
        """Run it; FlheError where it does not show what it claims."""
        found = self.run()
        if not found.shown:
            raise FlheError(f"{self.name} shows something else: {found.text}")
        return found


@functools.cache
def proofs() -> Mapping[str, Proof]:
    """All of them, by name: that of the function that returns what it found."""
    runs = {
        name[1:].replace("_", "-"): run
        for module in MODULES
        for name, run in vars(import_module(f"{__package__}.{module}")).items()
        if getattr(run, "__annotations__", {}).get("return") == Found.__name__
    }
    texts = load_toml(Path(__file__).with_name(TEXTS))
    if set(texts) != set(runs):
        raise ConfigError(f"{TEXTS}: without a text or a proof: {set(texts) ^ set(runs)}")
    return {name: Proof(name, run=runs[name], **text) for name, text in texts.items()}


def named(name: str) -> Proof:
    """The proof of that name; ConfigError for one that there is not."""
    if name not in proofs():
        raise ConfigError(
            f"there is no proof {name!r}; `flhe corrections` lists all {len(proofs())}"
        )
    return proofs()[name]


def of_paper(paper: Paper) -> list[Proof]:
    """A paper's proofs, what breaks secrecy first."""
    weights = list(VERDICTS)
    mine = [proof for proof in proofs().values() if proof.paper == paper]
    return sorted(mine, key=lambda proof: weights.index(proof.verdict))


def fixed(seed: int) -> Random:
    """Bytes that are always the same, where a scheme takes random ones; they guard nothing."""
    return np.random.default_rng(seed).bytes  # keys of made-up clients, in proofs only
