"""Where witnesses are: outside the disk of what they witness, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flhe.errors import ConfigError, StoreError
from flhe.node import witness
from flhe.node.journal import Book, Note
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.node.witness import Witness, find, in_memory, is_apart

NAME = bytes(range(16))
MINE = f"flhe-{os.geteuid()}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(0o700)
    return tmp_path / "home"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """All there is is one disk, which is not in memory."""
    monkeypatch.setattr(witness, "is_apart", is_apart)
    monkeypatch.setattr(witness, "_device", lambda path: 1 if Path(path).name else 2)
    monkeypatch.setattr(witness, "_defaults", lambda environ: [Path(environ["BASE"]) / MINE])
    monkeypatch.setattr(witness, "in_memory", lambda place: False)


def test_a_place_of_its_own(home: Path, tmp_path: Path) -> None:
    """The first default that will do, in a directory of this user alone."""
    run = tmp_path / "run"
    run.mkdir()
    found = find(None, home, environ={"XDG_RUNTIME_DIR": str(run)})
    assert found == Witness(run / MINE)
    assert (run / MINE).stat().st_mode & 0o777 == 0o700
    (run / MINE).chmod(0o755)  # somebody else may look into it: another place
    assert find(None, home, environ={"XDG_RUNTIME_DIR": str(run)}, make=False).place != run / MINE
    (run / MINE).rmdir()
    (run / MINE).symlink_to(tmp_path)
    assert find(None, home, environ={"XDG_RUNTIME_DIR": str(run)}, make=False).place != run / MINE
    named = tmp_path / "named"
    assert find(named, home, make=False) == Witness(named)
    assert not named.exists()
    assert find(named, home, durable=True) == Witness(named, durable=True)
    named.chmod(0o750)
    with pytest.raises(StoreError, match="the witness's directory is open to others"):
        find(named, home)
    with pytest.raises(StoreError, match="cannot make a directory in the witness's directory"):
        find(tmp_path / "missing" / "place", home)


@pytest.mark.usefixtures("disk")
def test_a_place_on_the_same_disk_is_no_witness(home: Path, tmp_path: Path) -> None:
    environ = {"BASE": str(tmp_path)}
    with pytest.raises(ConfigError, match="on the same disk as the state directory"):
        find(tmp_path / "named", home)
    assert find(None, home, environ=environ) == Witness(None)
    # A disk that is never put back may hold its own witness.
    assert find(None, home, durable=True, environ=environ).place == tmp_path / MINE
    (tmp_path / MINE).chmod(0o777)
    assert find(None, home, durable=True, environ=environ).place == home / "witness"
    assert (home / "witness").is_dir()


def test_what_is_apart(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device, or one that is in memory and so never put back."""
    devices = {home: os.makedev(8, 1), tmp_path: os.makedev(8, 1), Path("/"): os.makedev(0, 30)}
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(witness, "_device", devices.__getitem__)
    monkeypatch.setattr(witness, "_MOUNTS", mounts)
    line = "24 1 {} / /x rw,nosuid shared:2 - {} dev rw\n"
    mounts.write_text(line.format("8:1", "ext4") + line.format("0:30", "tmpfs"))
    assert (in_memory(tmp_path), in_memory(Path("/"))) == (False, True)
    assert not is_apart(tmp_path, home)
    assert is_apart(Path("/"), home)
    mounts.write_text(line.format("8:1", "tmpfs"))
    assert is_apart(tmp_path, home)
    assert in_memory(Path("/")) is None
    mounts.unlink()
    assert in_memory(tmp_path) is None
    assert not is_apart(tmp_path, home)


def test_hashes_stay_and_go(tmp_path: Path) -> None:
    for kept in (Witness(tmp_path), Witness()):
        kept.follow(NAME, lambda _: b"one", new=True)
        kept.follow(NAME, lambda before: before + b" more")
        kept.follow(NAME, lambda before: before[:3])
        with pytest.raises(KeyError):
            kept.follow(NAME, lambda before: {}[before])
        with pytest.raises(KeyError, match="one"):
            kept.follow(NAME, lambda before: {}[before])
        kept.forget(NAME)
        kept.forget(NAME)
        with pytest.raises(KeyError):
            kept.follow(NAME, lambda before: {}[before])
    assert [*tmp_path.iterdir()] == []


def test_a_witness_of_somebody_elses(tmp_path: Path) -> None:
    kept = Witness(tmp_path)
    kept.follow(NAME, lambda _: b"one", new=True)
    file = tmp_path / NAME.hex()
    file.chmod(0o644)
    with pytest.raises(StoreError, match="open to others"):
        kept.follow(NAME, lambda before: before)
    file.unlink()
    file.symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="cannot use a file in the witness's directory"):
        kept.follow(NAME, lambda before: before, new=True)
    assert not (tmp_path / "target").exists()


def test_without_a_place_keys_last_as_long_as_their_process(home: Path) -> None:
    """The error of the next process says how to mend it."""
    book = Book(Store(home), "runs/7/journal")
    book.begin(lambda now: now.begun(NAME, 0))
    book.enter(lambda now: now.claimed(NAME, (1, 0, 0), Note()))
    code = (
        "import sys; from flhe.node.journal import Book; from flhe.node.store import Store\n"
        "Book(Store(sys.argv[1]), 'runs/7/journal').enter()"
    )
    next_one = [sys.executable, "-c", code, str(home)]
    said = subprocess.run(next_one, capture_output=True, check=False).stderr.decode()
    assert "NoKeyError: keys last as long as one process here" in said
    assert "set flhe-witness in the node config" in said
    book.enter(lambda now: now.claimed(NAME, (1, 1, 0), Note()))


def test_the_node_says_where(tmp_path: Path) -> None:
    def policy(config: dict[str, object], **environ: str) -> Policy:
        how = {"run_id": 1, "node_id": 2, "simulated": False, "environ": environ}
        return Policy.of_node(config, **how)  # type: ignore[arg-type]

    own = {"flhe-home": "/a", "flhe-trust": "first-use"}
    assert policy(own).witness is None
    assert policy(own, FLHE_WITNESS="/e").witness == Path("/e")
    assert policy({**own, "flhe-witness": "/w"}, FLHE_WITNESS="/e").witness == Path("/w")
    with pytest.raises(ConfigError, match="flhe-witness must be text"):
        policy({**own, "flhe-witness": 3})
