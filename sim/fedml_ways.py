"""Ways to average updates, for FedML-HE's tables: in clear, by bare TenSEAL, and by both together.

A round is timed as it is lived through: one client's work from float32 to bytes, the server's on
everybody's bytes, one client's from bytes to the float32 mean. Clients work at the same time, so the
three add up to the round. Seconds are those of the processor: of the wall, on an idle machine, for all
is on one thread. TenSEAL takes vectors in pieces, so memory does not grow with them.

Bare TenSEAL is CKKS of ring dimension 8192 with one level, scale 2^40, encryption under the public key.
Weights are multiplied by the server, in plaintext, as in the paper's TenSEAL version (Algorithm 1; the
level is for that); or by the client before it encrypts, as in NVIDIA FLARE.

Source: Jin et al., "FedML-HE", Sec. 2.3 and appendix D.7.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flhe.coding.support import Support
from flhe.errors import FlheError
from flhe.schemes.seal_blocks import tenseal
from flhe.sim.bench import TOLERANCE
from flhe.sim.fedml_models import COHORT
from flhe.sim.peers import SLOTS

Vector = NDArray[np.float32]

MODULI = (60, 40, 60)
"""Bits; the last is the key's."""

GROUP = 64
"""Ciphertexts that are held at a time."""

EXAMPLES = (200, 300, 500)
"""Of the three clients."""

WEIGHTS = tuple(count / sum(EXAMPLES) for count in EXAMPLES)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one aggregation costs.

    Parameters
    ----------
    encrypt_s, aggregate_s, decrypt_s : float
        Processor seconds: of one client, of the server, of one client.
    upload_bytes, download_bytes : int
        Of one client.
    values, measured : int
        Length of the vector, and of the part of it that was really processed.
    error : float
        Largest error of the mean over that part.
    """

    encrypt_s: float
    aggregate_s: float
    decrypt_s: float
    upload_bytes: int
    download_bytes: int
    values: int
    measured: int
    error: float

    @property
    def total_s(self) -> float:
        """The three phases, one after the other."""
        return self.encrypt_s + self.aggregate_s + self.decrypt_s

    @property
    def origin(self) -> str:
        """Whether all of it was measured, or a part that the rest was projected from."""
        return "measured" if self.measured == self.values else "sampled"

    def __add__(self, other: Cost) -> Cost:
        """Of two parts of one vector."""
        return Cost(
            self.encrypt_s + other.encrypt_s,
            self.aggregate_s + other.aggregate_s,
            self.decrypt_s + other.decrypt_s,
            self.upload_bytes + other.upload_bytes,
            self.download_bytes + other.download_bytes,
            self.values + other.values,
            self.measured + other.measured,
            max(self.error, other.error),
        )

    def projected(self, values: int) -> Cost:
        """Of a vector of `values`, where all grows with its length."""
        factor = values / self.measured
        return replace(
            self,
            encrypt_s=self.encrypt_s * factor,
            aggregate_s=self.aggregate_s * factor,
            decrypt_s=self.decrypt_s * factor,
            upload_bytes=round(self.upload_bytes * factor),
            download_bytes=round(self.download_bytes * factor),
            values=values,
        )


class Way(Protocol):
    """One way to average."""

    @property
    def name(self) -> str:
        """Name in the tables."""

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once."""


class Watch:
    """Processor seconds by phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("encrypt", "aggregate", "decrypt"), 0.0)
        self._began = time.process_time()

    def start(self) -> None:
        """Begin to count."""
        self._began = time.process_time()

    def stop(self, phase: str, share: float = 1.0) -> None:
        """Count it to this phase; of work done for several clients, one's share."""
        self.seconds[phase] += share * (time.process_time() - self._began)


def finished(
    watch: Watch, upload: int, download: int, mean: Vector, updates: Sequence[Vector]
) -> Cost:
    """The cost; FlheError where the mean is not the mean."""
    exact = sum(w * u.astype(np.float64) for w, u in zip(WEIGHTS, updates, strict=True))
    error = float(np.max(np.abs(mean - exact), initial=0.0))
    if not error <= TOLERANCE:
        raise FlheError(f"a mean is off by {error:.3g}; its times mean nothing")
    seconds = watch.seconds
    return Cost(
        seconds["encrypt"],
        seconds["aggregate"],
        seconds["decrypt"],
        upload,
        download,
        mean.size,
        mean.size,
        error,
    )


class PlainWay:
    """FedAvg in clear: float32 to bytes, the weighted sum, bytes to float32."""

    name = "plain"

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once."""
        watch = Watch()
        parts = []
        for update in updates:
            watch.start()
            parts.append(update.tobytes())
            watch.stop("encrypt", 1 / COHORT)
        watch.start()
        total = np.zeros(updates[0].size, np.float32)
        for weight, part in zip(WEIGHTS, parts, strict=True):
            total += np.frombuffer(part, np.float32) * np.float32(weight)
        down = total.tobytes()
        watch.stop("aggregate")
        watch.start()
        mean = np.frombuffer(down, np.float32).copy()
        watch.stop("decrypt")
        return finished(watch, len(parts[0]), len(down), mean, updates)


class TensealWay:
    """Bare TenSEAL, as a user would write it.

    Parameters
    ----------
    server_weighs : bool
        Whether the server multiplies by the weights, or the clients.
    moduli : tuple of int
        Bits of the coefficient moduli.
    """

    def __init__(self, server_weighs: bool, moduli: tuple[int, ...] = MODULI) -> None:
        self.name = f"TenSEAL, {'server' if server_weighs else 'client'}"
        self.server_weighs = server_weighs
        self._ts = tenseal()
        self._context = self._ts.context(
            self._ts.SCHEME_TYPE.CKKS,
            poly_modulus_degree=2 * SLOTS,
            coeff_mod_bit_sizes=list(moduli),
            n_threads=1,
        )
        self._context.global_scale = 2**40
        self._public = self._ts.context_from(
            self._context.serialize(save_secret_key=False), n_threads=1
        )

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once, GROUP ciphertexts at a time."""
        watch, upload, download = Watch(), 0, 0
        mean = np.empty(updates[0].size, np.float32)
        for at in range(0, mean.size, GROUP * SLOTS):
            group = [update[at : at + GROUP * SLOTS] for update in updates]
            parts = []
            for weight, values in zip(WEIGHTS, group, strict=True):
                watch.start()
                parts.append(self._encrypt(values, weight))
                watch.stop("encrypt", 1 / COHORT)
            upload += sum(map(len, parts[0]))
            watch.start()
            down = [self._aggregate(row) for row in zip(*parts, strict=True)]
            watch.stop("aggregate")
            download += sum(map(len, down))
            watch.start()
            mean[at : at + GROUP * SLOTS] = np.concatenate([self._decrypt(data) for data in down])
            watch.stop("decrypt")
        return finished(watch, upload, download, mean, updates)

    def _encrypt(self, values: Vector, weight: float) -> list[bytes]:
        if not self.server_weighs:
            values = values * np.float32(weight)
        pieces = (values[at : at + SLOTS] for at in range(0, values.size, SLOTS))
        return [self._ts.ckks_vector(self._context, piece).serialize() for piece in pieces]

    def _aggregate(self, row: tuple[bytes, ...]) -> bytes:
        total: Any = None
        for weight, data in zip(WEIGHTS, row, strict=True):
            part = self._ts.ckks_vector_from(self._public, data)
            if self.server_weighs:
                part = part.mul_(weight)
            total = part if total is None else total.add_(part)
        serialized: bytes = total.serialize()
        return serialized

    def _decrypt(self, data: bytes) -> NDArray[np.float64]:
        return np.array(self._ts.ckks_vector_from(self._context, data).decrypt())


class SelectedWay:
    """A part of each update under one way, the rest in clear as float32.

    Parameters
    ----------
    inner : Way
        What encrypts.
    mask : Support
        Which values.
    """

    def __init__(self, inner: Way, mask: Support) -> None:
        self.name = inner.name
        self._inner = inner
        self._coords = mask.coords
        self._clear = np.ones(mask.length, bool)
        self._clear[self._coords] = False

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once; taking vectors apart and putting means together counts."""
        watch = Watch()
        chosen, rest = [], []
        for update in updates:
            watch.start()
            chosen.append(update[self._coords])
            rest.append(update[self._clear])
            watch.stop("encrypt", 1 / COHORT)
        costs = self._inner.cost(chosen) + PlainWay().cost(rest)
        watch.start()
        mean = np.empty_like(updates[0])
        mean[self._coords] = chosen[0]
        mean[self._clear] = rest[0]
        watch.stop("decrypt")
        return replace(
            costs,
            encrypt_s=costs.encrypt_s + watch.seconds["encrypt"],
            decrypt_s=costs.decrypt_s + watch.seconds["decrypt"],
        )
