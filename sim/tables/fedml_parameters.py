"""FedML-HE's Table 6: CKKS by the values in a ciphertext and the scale, under TenSEAL.

The paper's batch is how many slots are used, in one ring. What a scale does to a model is seen in the
error of a mean, and in a federation that learns digits, each of whose means goes through ciphertexts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe_lab.bench.contender import Setting, Vector
from flhe_lab.bench.peers import SLOTS, Tenseal, tenseal_ckks
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.papers.curves import quiet
from flhe_lab.papers.published import MB
from flhe_lab.tables.fedml_measure import CNN, COHORT, TABLE_6
from flhe_lab.tables.result import Marked, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

HEAD = 5
"""Bits of the data's prime above the scale: sign, integer part, and noise where it is that large."""

RING = 2 * SLOTS
BUDGET = {2048: 54, 4096: 109, RING: 218}
"""Ring dimension -> bits of modulus at 128 bits of security, the homomorphic encryption standard's."""

LEAST = {2048: 14, 4096: 16, RING: 20}
"""Bits of the shortest prime that is taken; a ring of 8192 has none of 19."""

MOST = 60
"""Bits of the longest prime that SEAL takes."""

SHARES = (0.2, 0.3, 0.5)
"""Of the digits, by client."""


def primes(ring: int, scale: int) -> tuple[int, int]:
    """Bits of the shortest prime that carries values below 2**(HEAD - 1), and of the keys'."""
    data = max(scale + HEAD, LEAST[ring])
    return data, min(MOST, BUDGET[ring] - data)


def cipher_of(ring: int, scale: int, slots: int = 0) -> Tenseal:
    """CKKS where clients weigh."""
    return tenseal_ckks(primes(ring, scale), scale, ring, slots, weighs="client", wire=True)


def cost_of_setups(values: int, repeats: int, say: Say) -> list[dict[str, Any]]:
    """Seconds, bytes and error of one mean of `values`, by batch and scale."""
    setting = Setting(values, COHORT)
    updates, found = setting.updates(), []
    for paper in TABLE_6:
        say(f"{paper.batch} values, {paper.scale} bits")
        cipher = cipher_of(RING, paper.scale, paper.batch)
        way = cipher.contender(setting, updates, alike=False)
        # How far it is off is what is asked for: it may be far.
        (seen,) = in_turns([replace(way, error=None)], repeats).values()
        seconds = seen.least
        row = {
            "slots": paper.batch,
            "scale": paper.scale,
            "values": values,
            "seconds": sum(seconds.values()) + (COHORT - 1) * seconds["add"],
            "bytes": way.upload_bytes,
            "error": way.error() if way.error else None,
        }
        found.append(row)
    return found


def accuracy(
    batches: Sequence[int], scales: Sequence[int], rounds: int, say: Say, examples: int = 0
) -> dict[str, Any]:
    """Best test accuracy in clear, and by scale through CKKS of rings that batches fill.

    `examples` bounds those of each client; 0 for all.
    """
    say("in clear")
    clear = _learn(None, rounds, examples)
    found: dict[str, Any] = {"clear": clear, "rounds": rounds, "encrypted": []}
    for batch, scale in itertools.product(batches, scales):
        ring = 2 * batch
        if min(primes(ring, scale)) >= LEAST[ring]:
            say(f"n = {ring}, {scale} bits")
            best = _learn(cipher_of(ring, scale), rounds, examples)
            found["encrypted"].append({"ring": ring, "scale": scale, "best": best})
    return found


def _mean(models: Sequence[Vector], cipher: Tenseal | None) -> Any:
    if cipher is None:
        return np.average(models, axis=0, weights=SHARES)
    first, *others = (cipher.encrypt(m, w) for m, w in zip(models, SHARES, strict=True))
    total = cipher.begin(first)
    for part in others:
        cipher.add(total, part)
    return cipher.opened(cipher.close(total))


def _learn(cipher: Tenseal | None, rounds: int, examples: int) -> float:
    """Best test accuracy of three clients' digits over so many rounds, one epoch each."""
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from flhe_app.tasks import task_named
    from flhe_app.tasks.base import evaluate, new_model, shuffler, train

    task = task_named("digits")
    data, model = task.load(""), new_model(task, 0)
    size = task.source.train_size
    order, bounds = np.arange(size), (np.cumsum((0, *SHARES)) * size).astype(int)
    parts = [order[a:b][: examples or None] for a, b in itertools.pairwise(bounds)]
    common, best = parameters_to_vector(model.parameters()).detach().clone(), 0.0
    how: Any = {"epochs": 1, "learning_rate": 0.05, "batch_size": 32}
    with quiet(1):
        for number in range(1, rounds + 1):
            models = []
            for rank, part in enumerate(parts):
                vector_to_parameters(common.clone(), model.parameters())
                train(model, data.train.take(part), shuffle=shuffler(0, rank, number), **how)
                models.append(parameters_to_vector(model.parameters()).detach().numpy().copy())
            if not all(np.isfinite(each).all() for each in models):
                break  # noise has thrown it off its course for good
            common = torch.from_numpy(_mean(models, cipher).astype(np.float32))
            vector_to_parameters(common.clone(), model.parameters())
            best = max(best, evaluate(model, data.test).accuracy)
    return best


def _step(plan: Plan) -> Step:
    values = SLOTS * (4 if plan.quick else 16)
    return Step(
        f"fedml-parameters-{values}",
        lambda say: cost_of_setups(values, 1 if plan.quick else 3, say),
        "CKKS by batch and scale",
    )


def _accuracy_step(plan: Plan) -> Step:
    batches, scales = (sorted({getattr(row, by) for row in TABLE_6}) for by in ("batch", "scale"))
    rounds, examples = 8, 0
    if plan.quick:
        batches, scales, rounds, examples = [2048], [14, 52], 3, 150
    return Step(
        f"fedml-accuracy-{rounds}-{len(batches)}-{len(scales)}",
        lambda say: accuracy(batches, scales, rounds, say, examples),
        "learning digits through CKKS",
    )


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    costs = {(cost["slots"], cost["scale"]): cost for cost in found[_step(plan).key]}
    learned = found[_accuracy_step(plan).key]
    changes = {
        (each["ring"], each["scale"]): measured(100 * (each["best"] - learned["clear"]))
        for each in learned["encrypted"]
    }
    for paper in sorted(TABLE_6, key=lambda paper: paper.scale):
        cost, row, x = costs[paper.batch, paper.scale], f"{paper.scale} bits", float(paper.scale)
        factor = CNN.values / cost["values"]
        numbers: dict[str, Marked | None] = {
            "aggregation": Marked(cost["seconds"] * factor, "sampled"),
            "upload": Marked(cost["bytes"] * factor / MB, "sampled"),
            "largest error": measured(cost["error"]),
            "test accuracy": changes.get((RING, paper.scale)),
        }
        yield Line(row, f"TenSEAL, {paper.batch} values", "peer", numbers, x)
        filled = 2 * paper.batch
        if filled != RING:
            change = {"test accuracy": changes.get((filled, paper.scale))}
            yield Line(row, f"TenSEAL, {paper.batch} values, n = {filled}", "peer", change)
        theirs = {
            "aggregation": paper.seconds,
            "upload": paper.nbytes / MB,
            "test accuracy": paper.change,
        }
        yield Line(row, f"{paper.batch} values", "paper", theirs, x)


def _told(plan: Plan, found: Found) -> dict[str, object]:
    taken, learned = found[_step(plan).key][0]["values"], found[_accuracy_step(plan).key]
    return {"taken": taken, "rounds": learned["rounds"], "clear": 100 * learned["clear"]}


TABLE_6_SECTION = section(
    lambda plan: [_step(plan), _accuracy_step(plan)], Table("fedml-table-6", _lines, _told)
)
