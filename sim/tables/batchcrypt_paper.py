"""What BatchCrypt and ESAFL say in numbers, and what follows; their figures are pictures without any.

ESAFL's evaluation takes over the models, the network and the peers' numbers. Hours, gigabytes and
epochs until convergence are in `flhe_lab.papers.convergence`,
stock FATE's iterations in `flhe_lab.papers.corrections.hours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flhe_lab.advise import wan
from flhe_lab.bench.esafl_sizes import MODELS as ESAFL_TABLE_3
from flhe_lab.papers.convergence import Reported, reported
from flhe_lab.papers.corrections.hours import BATCHCRYPT_ITERATION
from flhe_lab.tables.learned import NAMES

COHORT = 9
"""Clients, Sec. 6.1."""

LINK = wan.named("batchcrypt")

MODELS = ("fcn", "alexnet", "lstm")
"""Table 3, by growing size; FMNIST, CIFAR and LSTM there."""

MB, GB = 1 << 20, 1 << 30
"""The paper's: 8 bytes a value of nine clients are Sec. 3.1's 6.98 MB."""

FATE, BATCHCRYPT, ESAFL, PLAIN = "FATE", "BatchCrypt", "ESAFL", "plain"
"""Modes, as `convergence.REPORTED` has them."""

ITERATIONS = {"fcn": 52, "alexnet": 44, "lstm": 174}
"""Iterations of an epoch. Told nowhere: stock FATE's hours (Table 4) by its seconds an iteration (Sec.
3.1) and its epochs are 52.03, 44.01 and 173.99."""

PLAIN_MB = {"fcn": 6.98, "alexnet": 85.89, "lstm": 275.93}
"""Sec. 3.1: an iteration without encryption, all nine clients, up and down."""

BATCH = {8: 200, 16: 100, 32: 50}
"""Sec. 6.4: bits of a value -> values of a ciphertext, as told."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of Table 1: python-paillier on 900,000 floats.

    Parameters
    ----------
    key_bits : int
    plain_mb, cipher_mb : float
        MB of 2^20 bytes.
    encrypt_s, decrypt_s : float
        Seconds on a machine of 16 virtual processors; how many of them, it does not say.
    """

    key_bits: int
    plain_mb: float
    cipher_mb: float
    encrypt_s: float
    decrypt_s: float


TABLE_1_VALUES = 900_000
TABLE_1 = (
    Line(1024, 6.87, 287.64, 216.87, 68.63),
    Line(2048, 6.87, 527.17, 1152.98, 357.17),
    Line(3072, 6.87, 754.62, 3111.14, 993.80),
)

_STOCK = dict(zip(MODELS, BATCHCRYPT_ITERATION.values(), strict=True))
_FASTER = dict(zip(MODELS, ((23.3, 66.0), (70.8, 71.0), (92.8, 101.0)), strict=True))
"""How many times less time and traffic an iteration took than with stock FATE (Sec. 6.3)."""


def iteration_s(model: str) -> Mapping[str, float]:
    """Mode -> seconds of an iteration: stock FATE's as told, the others' by the ratios told."""
    stock, _, to_plain = _STOCK[model]
    return {FATE: stock, BATCHCRYPT: stock / _FASTER[model][0], PLAIN: stock / to_plain}


def traffic_mb(model: str) -> Mapping[str, float]:
    """Mode -> MB of an iteration, all nine clients, up and down."""
    stock = _STOCK[model][1] * 1024
    smaller = _FASTER[model][1]
    return {FATE: stock, BATCHCRYPT: stock / smaller, PLAIN: PLAIN_MB[model]}


def line(paper: str, model: str, mode: str) -> Reported:
    """A line of BatchCrypt's Table 4, or of ESAFL's Table 5."""
    return reported(paper, NAMES[model], mode)


def rounds(paper: str, model: str, mode: str) -> int:
    """Iterations until convergence: that table's epochs."""
    return line(paper, model, mode).epochs * ITERATIONS[model]


def esafl_iteration_s(model: str) -> Mapping[str, float]:
    """Mode -> seconds of an iteration in ESAFL's paper: its own are hours of Table 5."""
    own = {}
    for mode in (ESAFL, PLAIN):
        said = line("ESAFL", model, mode)
        own[mode] = said.hours * 3600 / (said.epochs * ITERATIONS[model])
    return {**iteration_s(model), **own}


def esafl_traffic_mb(model: str) -> Mapping[str, float]:
    """Mode -> MB of an iteration in ESAFL's paper, all nine clients: nine times its Table 3."""
    said = ESAFL_TABLE_3[MODELS.index(model)]
    own = {ESAFL: COHORT * said.traffic[1], PLAIN: COHORT * said.plain_traffic}
    return {**traffic_mb(model), **own}
