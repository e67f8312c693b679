"""Updates with noise at a node: drawn once a round, however often they are asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.training.terms import Terms
from tests.mods.harness import Group, Site, refused, update

TERMS = Terms(
    codec=update_codec(clip=1.0, weighted=False),
    metrics=("loss",),
    select=Select(0.5, "random"),
    noise=Laplace(0.25),
)
ALLOW = {"flhe-min-select": 0.5, "flhe-select-rules": "random"}


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path, terms=TERMS, config=ALLOW).agree()


def shown(group: Group, attempt: int = 0, **how: object) -> NDArray[np.int64]:
    """What the server sees of the first site's update."""
    sealed = update(group.ask(group.sites[0], attempt=attempt, **how))
    model = group.sites[0].model
    scheme = TERMS.selective(TERMS.for_cohort(3, model.layout), model.layout)
    _, rest = scheme.split(sealed)  # type: ignore[attr-defined]
    out = np.empty(scheme.rest, scheme.packing.signed)  # type: ignore[attr-defined]
    scheme.packing.unpack(rest, np.zeros(out.size, scheme.packing.lane), out)  # type: ignore[attr-defined]
    return out.astype(np.int64)


def test_another_training_has_its_own_and_counts(group: Group, site: Site) -> None:
    """Told otherwise, the app trains again: that is another release, and the node counts it."""
    site.allow(**{"flhe-max-releases": 3})
    seen = [shown(group)]
    for attempt in (1, 2):
        group.renew(lr=0.1 + attempt)
        seen.append(shown(group, attempt))
    assert min(np.abs(a - b).max() for a, b in itertools.pairwise(seen)) > 100
    group.renew(lr=9.0)
    refused(group.ask(site, attempt=3), 1010)
    assert len(site.app.seen) == 3
    assert (site.run / "releases").read_bytes() == (3).to_bytes(8, "big")
