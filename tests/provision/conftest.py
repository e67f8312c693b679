"""A federation of three sites, made by `flhe site` and `flhe federation`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.provision.party import NAMES, Party
from tests.provision.site import good


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation in which every site has joined; `first.flhe` is an earlier file of it."""
    party = Party(tmp_path_factory.mktemp("federation"))
    party.init(*NAMES)
    good(*party.founding())
    party.add(*NAMES)
    party.publish()
    shutil.copy(party.file, party.tmp / "first.flhe")
    party.publish()
    party.join(*NAMES)
    return party.tmp


@pytest.fixture
def party(ready: Path, tmp_path: Path) -> Party:
    """A copy, whose node configs name the copied directories."""
    shutil.copytree(ready, tmp_path / "copy")
    for name in NAMES:
        path = tmp_path / "copy" / name / "node.toml"
        path.write_text(path.read_text().replace(str(ready), str(tmp_path / "copy")))
    return Party(tmp_path / "copy")
