"""FedML-HE's Table 6: CKKS by the values in a ciphertext and the scale, under TenSEAL.

The paper's batch is how many slots are used, in one ring: its bytes are 256 KB a ciphertext at every
batch, two polynomials of 8192 coefficients in two words. That is measured here, and beside it the ring
whose slots the batch fills, with what modulus 128 bits of security leave it. Larger rings have no prime
of 14 bits: the next longer one that there is takes its place.

What a scale does to a model is seen in the error of a mean, and in a federation that learns the digits
of scikit-learn, each of whose means goes through such ciphertexts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.schemes.fedml_he.seal_blocks import tenseal
from flhe_lab.bench import Vector
from flhe_lab.bench.fedml_models import COHORT
from flhe_lab.bench.fedml_ways import WEIGHTS, updates_of
from flhe_lab.tables.fedml_published import BATCHES, SCALES
from flhe_lab.tables.section import Say

BUDGET = {2048: 54, 4096: 109, 8192: 218}
"""Ring dimension -> bits of modulus at 128 bits of security, the homomorphic encryption standard's."""

HEAD = 5
"""Bits of the last prime above the scale: sign, integer part, and noise where it is that large."""

LONGEST, SHORTEST = 60, 14
"""Bits of a prime that SEAL takes; that a ring of 2048 has."""

TRIES = 5
"""Lengths of a prime that are tried, from the shortest that does."""

PAPERS_RING = 8192


@dataclass(frozen=True, slots=True)
class Ckks:
    """TenSEAL with chosen parameters.

    Parameters
    ----------
    ring : int
        Its dimension; half as many slots.
    scale : int
        Bits.
    server_weighs : bool
        Whether there is a level for the server to multiply by weights; else clients do.
    moduli : tuple of int
        Bits of the primes, the key's last.
    context : tenseal.Context
        With all keys.
    """

    ring: int
    scale: int
    server_weighs: bool
    moduli: tuple[int, ...]
    context: Any = field(repr=False)

    @classmethod
    def of(cls, ring: int, scale: int, *, server_weighs: bool) -> Ckks | None:
        """The shortest that carries values below 2**(HEAD - 1); None where TenSEAL takes none."""
        ts = tenseal()
        least = max(scale + HEAD, SHORTEST + 2)
        firsts = range(least, min(least + TRIES, LONGEST + 1))
        levels = range(scale, scale + TRIES) if server_weighs else (0,)
        for first, level in itertools.product(firsts, levels):
            data = (first, level) if level else (first,)
            last = min(LONGEST, BUDGET[ring] - sum(data))
            if last < SHORTEST:
                continue
            try:
                context = ts.context(
                    ts.SCHEME_TYPE.CKKS, ring, coeff_mod_bit_sizes=[*data, last], n_threads=1
                )
            except (RuntimeError, ValueError):  # no such primes, or more than is secure
                continue
            context.global_scale = 2.0**scale
            return cls(ring, scale, server_weighs, (*data, last), context)
        return None

    def mean(self, updates: Sequence[Vector], slots: int) -> Mean:
        """The weighted mean of three updates, `slots` values to a ciphertext."""
        ts, context = tenseal(), self.context
        seconds, upload = 0.0, 0
        out = np.empty(updates[0].size, np.float64)
        for at in range(0, out.size, slots):
            parts = []
            for weight, update in zip(WEIGHTS, updates, strict=True):
                began = time.process_time()
                values = update[at : at + slots]
                if not self.server_weighs:
                    values = values * np.float32(weight)
                parts.append(ts.ckks_vector(context, values).serialize())
                seconds += (time.process_time() - began) / COHORT
            upload += len(parts[0])
            began = time.process_time()
            total: Any = None
            for weight, data in zip(WEIGHTS, parts, strict=True):
                part = ts.ckks_vector_from(context, data)
                if self.server_weighs:
                    part = part.mul_(weight)
                total = part if total is None else total.add_(part)
            opened = ts.ckks_vector_from(context, total.serialize()).decrypt()
            out[at : at + slots] = opened
            seconds += time.process_time() - began
        return Mean(out, seconds, upload)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, and what it took: seconds of one client, the server and one client; one's bytes."""

    values: NDArray[np.float64]
    seconds: float
    nbytes: int


def setups() -> list[tuple[int, int, bool]]:
    """(ring, slots used, whether the server weighs): as the paper has it, and rings that are filled."""
    rings = [(PAPERS_RING, batch) for batch in BATCHES] + [(2 * b, b) for b in BATCHES[:-1]]
    return [(*at, weighs) for at in rings for weighs in (True, False)]


def name(ring: int, *, server_weighs: bool) -> str:
    """As tables call it."""
    return f"TenSEAL, n = {ring}, {'server weighs' if server_weighs else 'clients weigh'}"


# --- what is measured ---

Average = Callable[[Sequence[Vector]], Vector]


def cost_of_setups(values: int, repeats: int, say: Say) -> list[dict[str, Any]]:
    """Seconds, bytes and error of one mean of `values`, for all setups and scales that there are."""
    updates = updates_of(values)
    exact = sum(w * u.astype(np.float64) for w, u in zip(WEIGHTS, updates, strict=True))
    found = []
    for ring, slots, weighs in setups():
        for scale in SCALES:
            say(f"{name(ring, server_weighs=weighs)}, {slots} values, {scale} bits")
            row: dict[str, Any] = {"ring": ring, "slots": slots, "weighs": weighs, "scale": scale}
            ckks = Ckks.of(ring, scale, server_weighs=weighs)
            if ckks is not None:
                means = [ckks.mean(updates, slots) for _ in range(repeats)]
                row |= {
                    "moduli": list(ckks.moduli),
                    "values": values,
                    "seconds": min(m.seconds for m in means),
                    "bytes": means[0].nbytes,
                    "error": max(float(np.abs(m.values - exact).max()) for m in means),
                }
            found.append(row)
    return found


def accuracy(
    rings: Sequence[int], scales: Sequence[int], rounds: int, say: Say, examples: int = 0
) -> dict[str, Any]:
    """Best test accuracy in clear, and through CKKS by ring and scale where clients weigh.

    `examples` bounds those of each client; 0 for all.
    """
    say("in clear")
    clear = _learn(_average, rounds, examples)
    found: dict[str, Any] = {"clear": clear, "rounds": rounds, "encrypted": []}
    for ring in rings:
        for scale in scales:
            ckks = Ckks.of(ring, scale, server_weighs=False)
            if ckks is None:
                continue
            say(f"n = {ring}, {scale} bits")
            best = _learn(_through(ckks), rounds, examples)
            found["encrypted"].append({"ring": ring, "scale": scale, "best": best})
    return found


def _average(models: Sequence[Vector]) -> Vector:
    out: Vector = np.average(models, axis=0, weights=WEIGHTS).astype(np.float32)
    return out


def _through(ckks: Ckks) -> Average:
    return lambda models: ckks.mean(models, ckks.ring // 2).values.astype(np.float32)


def _learn(average: Average, rounds: int, examples: int) -> float:
    """Best test accuracy of three clients' digits over so many rounds, one epoch each."""
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from flhe_app.tasks.base import evaluate, new_model, shuffler, train
    from flhe_app.tasks.digits import DIGITS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data, model = DIGITS.load("", download=False), new_model(DIGITS, 0)
        order = np.arange(DIGITS.train_size)
        bounds = (np.cumsum((0, *WEIGHTS)) * DIGITS.train_size).astype(int)
        parts = [order[a:b][: examples or None] for a, b in itertools.pairwise(bounds)]
        common, best = parameters_to_vector(model.parameters()).detach().clone(), 0.0
        for number in range(1, rounds + 1):
            models = []
            for rank, part in enumerate(parts):
                vector_to_parameters(common.clone(), model.parameters())
                train(
                    model,
                    data.train.take(part),
                    epochs=1,
                    learning_rate=0.05,
                    batch_size=32,
                    shuffle=shuffler(0, rank, number),
                )
                models.append(parameters_to_vector(model.parameters()).detach().numpy().copy())
            if not all(np.isfinite(each).all() for each in models):
                break  # noise has thrown it off its course for good
            common = torch.from_numpy(average(models))
            vector_to_parameters(common.clone(), model.parameters())
            best = max(best, evaluate(model, data.test).accuracy)
        return best
    finally:
        torch.set_num_threads(threads)
