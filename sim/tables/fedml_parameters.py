"""FedML-HE's Table 6: CKKS by the values in a ciphertext and the scale, under TenSEAL.

The paper's batch is how many slots are used, in one ring. That is measured here, and beside it the ring
whose slots the batch fills: see the table's notes. Larger rings have no prime of 14 bits: the next
longer one that there is takes its place. What a scale does to a model is seen in the error of a mean,
and in a federation that learns digits, each of whose means goes through such ciphertexts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flhe_lab.bench.contender import Setting, Vector
from flhe_lab.bench.peers import Tenseal, tenseal_ckks
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.papers.curves import quiet
from flhe_lab.papers.published import MB
from flhe_lab.tables.fedml_measure import BATCHES, CNN, COHORT, SCALES, TABLE_6
from flhe_lab.tables.result import Marked, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

TIME, SIZE = "aggregation", "upload"
BUDGET = {2048: 54, 4096: 109, 8192: 218}
"""Ring dimension -> bits of modulus at 128 bits of security, the homomorphic encryption standard's."""

HEAD = 5
"""Bits of the last prime above the scale: sign, integer part, and noise where it is that large."""

LONGEST, SHORTEST = 60, 14
"""Bits of a prime that SEAL takes; that a ring of 2048 has."""

TRIES = 5
"""Lengths of a prime that are tried, from the shortest that does."""

PAPERS_RING = 8192

SHARES = (0.2, 0.3, 0.5)
"""Of the digits, by client."""


def shortest(ring: int, scale: int, *, server_weighs: bool) -> tuple[Tenseal, list[int]] | None:
    """TenSEAL with the shortest primes that carry values below 2**(HEAD - 1), and bits of the primes.

    With `server_weighs` there is a level for the weights. None where TenSEAL takes none.
    """
    least = max(scale + HEAD, SHORTEST + 2)
    firsts = range(least, min(least + TRIES, LONGEST + 1))
    levels = range(scale, scale + TRIES) if server_weighs else (0,)
    for first, level in itertools.product(firsts, levels):
        data = [first, level] if level else [first]
        moduli = [*data, min(LONGEST, BUDGET[ring] - sum(data))]
        if moduli[-1] < SHORTEST:
            continue
        weighs = "server" if server_weighs else "client"
        try:
            return tenseal_ckks(moduli, scale, ring, weighs=weighs, wire=True), moduli
        except (RuntimeError, ValueError):  # no such primes, or more than is secure
            continue
    return None


def setups() -> list[tuple[int, int, bool]]:
    """(ring, slots used, whether the server weighs): as the paper has it, and rings that are filled."""
    rings = [(PAPERS_RING, batch) for batch in BATCHES] + [(2 * b, b) for b in BATCHES[:-1]]
    return [(*at, weighs) for at in rings for weighs in (True, False)]


def name(ring: int, *, server_weighs: bool) -> str:
    """As tables call it."""
    return f"TenSEAL, n = {ring}, {'server weighs' if server_weighs else 'clients weigh'}"


def cost_of_setups(values: int, repeats: int, say: Say) -> list[dict[str, Any]]:
    """Seconds, bytes and error of one mean of `values`, for all setups and scales that there are."""
    setting = Setting(values, COHORT)
    updates, found = setting.updates(), []
    for ring, slots, weighs in setups():
        for scale in SCALES:
            say(f"{name(ring, server_weighs=weighs)}, {slots} values, {scale} bits")
            row: dict[str, Any] = {"ring": ring, "slots": slots, "weighs": weighs, "scale": scale}
            made = shortest(ring, scale, server_weighs=weighs)
            if made is not None:
                way = replace(made[0], slots=slots).contender(setting, updates, alike=False)
                # How far it is off is what is asked for: it may be far.
                (seen,) = in_turns([replace(way, error=None)], repeats).values()
                seconds = seen.least
                row |= {
                    "moduli": made[1],
                    "values": values,
                    "seconds": sum(seconds.values()) + (COHORT - 1) * seconds["add"],
                    "bytes": way.upload_bytes,
                    "error": way.error() if way.error else None,
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
    clear = _learn(lambda models: np.average(models, axis=0, weights=SHARES), rounds, examples)
    found: dict[str, Any] = {"clear": clear, "rounds": rounds, "encrypted": []}
    for ring in rings:
        for scale in scales:
            made = shortest(ring, scale, server_weighs=False)
            if made is None:
                continue
            say(f"n = {ring}, {scale} bits")
            best = _learn(_through(made[0]), rounds, examples)
            found["encrypted"].append({"ring": ring, "scale": scale, "best": best})
    return found


Average = Callable[[Sequence[Vector]], Any]


def _through(cipher: Tenseal) -> Average:
    def average(models: Sequence[Vector]) -> Any:
        first, *others = (cipher.encrypt(m, w) for m, w in zip(models, SHARES, strict=True))
        total = cipher.begin(first)
        for part in others:
            cipher.add(total, part)
        return cipher.opened(cipher.close(total))

    return average


def _learn(average: Average, rounds: int, examples: int) -> float:
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
    with quiet(1):
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
            common = torch.from_numpy(average(models).astype(np.float32))
            vector_to_parameters(common.clone(), model.parameters())
            best = max(best, evaluate(model, data.test).accuracy)
    return best


def parameter_steps(plan: Plan) -> list[Step]:
    """Costs by batch and scale; what learning through them comes to."""
    values, quick = 4 * BATCHES[-1] * (1 if plan.quick else 4), "-quick" if plan.quick else ""
    rounds = 3 if plan.quick else 8
    rings = (4096,) if plan.quick else tuple(BUDGET)
    scales = (14, 52) if plan.quick else SCALES
    return [
        Step(
            f"fedml-parameters-{values}{quick}",
            lambda say: cost_of_setups(values, 1 if plan.quick else 3, say),
            "CKKS by batch and scale",
        ),
        Step(
            f"fedml-accuracy-{rounds}-{len(rings)}-{len(scales)}",
            lambda say: accuracy(rings, scales, rounds, say, 150 if plan.quick else 0),
            "learning digits through CKKS",
        ),
    ]


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    costs, learned = (found[each.key] for each in parameter_steps(plan))
    changes = {
        (each["ring"], each["scale"]): 100 * (each["best"] - learned["clear"])
        for each in learned["encrypted"]
    }
    for paper in sorted(TABLE_6, key=lambda paper: paper.scale):
        row, x = f"{paper.scale} bits", float(paper.scale)
        for cost in costs:
            if (cost["slots"], cost["scale"]) != (paper.batch, paper.scale) or "values" not in cost:
                continue
            who = f"n = {cost['ring']}, {cost['slots']} values"
            who += ", server weighs" if cost["weighs"] else ""
            factor = CNN.values / cost["values"]
            numbers = {
                TIME: Marked(cost["seconds"] * factor, "sampled"),
                SIZE: Marked(cost["bytes"] * factor / MB, "sampled"),
                "largest error": measured(cost["error"]),
            }
            # Of both ways to weigh, the picture has the one that takes no level.
            yield Line(row, who, "peer", numbers, None if cost["weighs"] else x)
            change = changes.get((cost["ring"], cost["scale"]))
            if change is not None and not cost["weighs"]:
                yield Line(row, who, "peer", {"test accuracy": measured(change)}, x)
        theirs = {TIME: paper.seconds, SIZE: paper.nbytes / MB, "test accuracy": paper.change}
        yield Line(row, f"{paper.batch} values", "paper", theirs, x)


def _told(plan: Plan, found: Found) -> dict[str, object]:
    costs, learned = (found[each.key] for each in parameter_steps(plan))
    refused = [
        f"{name(c['ring'], server_weighs=c['weighs'])}, {c['scale']} bits"
        for c in costs
        if "values" not in c and c["slots"] == c["ring"] // 2
    ]
    return {
        "taken": max(cost.get("values", 0) for cost in costs),
        "refused": "; ".join(refused) or "none",
        "rounds": learned["rounds"],
        "clear": 100 * learned["clear"],
    }


TABLE_6_SECTION = section(parameter_steps, Table("fedml-table-6", _lines, _told))
