"""What only the apps of a loopback deployment knew: models, what they trained, updates.

Updates are known as floats, and as the integers that each run's scheme encrypts (`lanes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flhe.coding.flatten import Layout, layout_of
from flhe.errors import FlheError
from flhe.keys.agreement.states import Epoch
from flhe.mods import records
from flhe.node.node import EPOCHS
from flhe.node.store import Store
from flhe.schemes.base import Adder
from flhe.training.terms import Terms
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal.app import SITES, Plan
from flhe_lab.rehearsal.lanes import quantized, unencrypted
from flhe_lab.rehearsal.loopback import Loopback, Run
from flhe_lab.rehearsal.node_secrets import MODEL, UPDATE
from flhe_lab.rehearsal.search import Secrets
from flhe_lab.rehearsal.writings import of_update, of_vector

Floats = NDArray[np.float32]

TRAINED = "trained model"
LANES = "quantized update"


def terms_of(scheme: str) -> Terms:
    """Terms of the run of `scheme`."""
    most = loopback_app.MAX_EXAMPLES
    return loopback_app.strategy(scheme, len(SITES), most, lambda _: None).terms


def layout(values: int) -> Layout:
    """The layout of the model that runs start from."""
    return layout_of(records.to_numpy(initial(values)))


def adders(loopback: Loopback) -> Iterator[tuple[Adder, int]]:
    """The adder of each run, for each size that its group may have had, and how many integers it seals.

    BatchCrypt's has the public key of each epoch that is still there.
    """
    for name in loopback.plan.schemes:
        terms = terms_of(name)
        pairs = terms.scheme.agreement == "key-pair"
        for cohort in range(2, len(SITES) + 1):
            for public in {b"", *_publics(loopback)} if pairs else (b"",):
                try:
                    adder = terms.for_cohort(cohort, public)
                    yield adder, terms.resolved(cohort).lanes(layout(loopback.plan.values))
                except FlheError:  # the public key of another run
                    continue


def _publics(loopback: Loopback) -> Iterator[bytes]:
    for name in SITES:
        store = Store(loopback.home(name))
        for keys in store.names(EPOCHS):
            yield Epoch.from_bytes(store.read(keys)).scheme_public


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


def note(loopback: Loopback) -> None:
    """Add all of it to the deployment's secrets."""
    secrets, plan = loopback.secrets, loopback.plan
    for run in loopback.runs:
        for number in range(1, plan.rounds + 1):
            for index, found in enumerate(notes_of(loopback, run, number)):
                source = run.scheme, number, index
                change = found["trained"] - found["received"]
                secrets.add(TRAINED, *of_vector(found["trained"]), source=source)
                secrets.add(UPDATE, *of_update(change, loopback_app.CLIP), source=source)
                if number > 1:
                    secrets.add(MODEL, *of_vector(found["received"]), source=source)
    rounds = range(1, plan.rounds + 1)
    for name, site, number in itertools.product(plan.schemes, range(len(SITES)), rounds):
        made = loopback_app.update(name, site, number, plan.values)
        secrets.add(UPDATE, *of_update(made, loopback_app.CLIP))
        arrays, terms = layout(made.size), terms_of(name)
        for cohort in range(2, len(SITES) + 1):  # as groups of two to all sites pack its integers
            own = terms.resolved(cohort)
            integers = quantized(own, arrays, made, loopback_app.examples(site))
            trailer = own.trailer_lanes(arrays)
            secrets.add(LANES, *unencrypted(own.for_cohort(cohort), integers, trailer))


def missing(secrets: Secrets, plan: Plan) -> Iterator[str]:
    """Notes that apps must have written, and that are not there, in words."""
    for kind, name, number in itertools.product(
        (TRAINED, UPDATE, MODEL), plan.schemes, range(1, plan.rounds + 1)
    ):
        if kind == MODEL and number == 1:
            continue
        away = plan.kill and number == loopback_app.HOLD_ROUND  # it may have died before it wrote
        sources = (of for of in secrets.sources.get(kind, ()) if isinstance(of, tuple))
        told = sum(of[:2] == (name, number) for of in sources)
        if told < len(SITES) - away:
            yield f"{kind} of {name}, round {number}: {told} of {len(SITES) - away} sites"
