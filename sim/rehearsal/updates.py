"""What only the apps of a loopback deployment knew: models, what they trained, updates."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal.app import SITES
from flhe_lab.rehearsal.loopback import Loopback, Run
from flhe_lab.rehearsal.node_secrets import MODEL, UPDATE
from flhe_lab.rehearsal.writings import of_update, of_vector

Floats = NDArray[np.float32]

TRAINED = "trained model"


def notes_of(loopback: Loopback, run: Run, number: int) -> list[dict[str, Floats]]:
    """What apps wrote down in a round."""
    found = []
    for name in SITES:
        for flower_id in sorted({run.id, run.now}):
            path = loopback.notes(name) / f"{flower_id}-{number}.npz"
            if path.exists():
                with np.load(path, allow_pickle=False) as arrays:
                    found.append(dict(arrays))
    return found


def note(loopback: Loopback) -> list[str]:
    """Add all of it to the deployment's secrets; returns what apps did not write down, in words."""
    secrets, plan, missing = loopback.secrets, loopback.plan, []
    rounds = range(1, plan.rounds + 1)
    for run, number in itertools.product(loopback.runs, rounds):
        notes = notes_of(loopback, run, number)
        for found in notes:
            secrets.add(TRAINED, *of_vector(found["trained"]))
            change = found["trained"] - found["received"]
            secrets.add(UPDATE, *of_update(change, loopback_app.CLIP))
            if number > 1:
                secrets.add(MODEL, *of_vector(found["received"]))
        # Who was killed may have died before it wrote.
        least = len(SITES) - (plan.kill and number == loopback_app.HOLD_ROUND)
        if len(notes) < least:
            missing.append(
                f"updates of {run.scheme}, round {number}: {len(notes)} of {least} sites"
            )
    for name, site, number in itertools.product(plan.schemes, range(len(SITES)), rounds):
        made = loopback_app.update(name, site, number, plan.values)
        secrets.add(UPDATE, *of_update(made, loopback_app.CLIP))
    return missing
