"""A second `flwr run` of one deployment: refused by name, until the sites permit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.errors import QuorumError
from flhe.strategies import flashe_fedavg
from tests.provision.site import good
from tests.strategies.puppets import Puppets, initial
from tests.strategies.test_he_strategy import MAX

pytestmark = pytest.mark.usefixtures("quick")


def train(path: Path, run_id: int) -> None:
    """One round of three nodes on the directories below `path`, each of which allows one federation."""
    grid = Puppets(path, 3, run_id=run_id, config=lambda _: {"flhe-max-federations": 1})
    try:
        flashe_fedavg(max_examples=MAX).start(grid, initial(), num_rounds=1)
    finally:
        grid.close()


def test_it_is_refused_by_name_until_the_sites_permit_it(tmp_path: Path) -> None:
    train(tmp_path, 7)
    with pytest.raises(QuorumError, match=r"flhe/federations: .*permit one more \(flhe permit\)"):
        train(tmp_path, 8)
    for home in tmp_path.glob("node-*"):
        good("permit", "--home", home)
    train(tmp_path, 9)
    with pytest.raises(QuorumError, match="flhe/federations"):
        train(tmp_path, 10)
